"""The page of verdicts on strangers, made from the JSON files beside it."""

import json
import re
from pathlib import Path
from typing import Any

from stranger_list import PACKAGES
from stranger_notes import NOTES

HEAD = """\
# Verdicts on kernels that nobody here wrote

Outputs and gradients, judged on the CPU by the command

    pip install -e '.[accelerated-scan,jax,mambapy]'
    python benchmarks/strangers.py

which writes one text and one JSON file per kernel and dtype, and this page from all of
them. A kernel without a declared contract is judged under the default one: any order
of additions and multiplications in the format of computation. `examples/` holds scans
as users write them. The worst ratio is error over budget, of all outputs and gradients
in all cases; above 1 no rounding explains it.

| kernel | contract | dtype | verdict | cases | worst ratio | versions |
|---|---|---|---|---|---|---|
"""


def page(folder: Path) -> str:
    """The page as Markdown, from every record of the folder."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    lines = [_row(record) for record in records]
    text = HEAD + "\n".join(lines) + "\n\n## Where each verdict comes from\n"
    for targets, note in NOTES:
        text += f"\n**{', '.join(f'`{target}`' for target in targets)}**. {note}\n"
    return text + _environment(records)


def _row(record: dict[str, Any]) -> str:
    target = record["target"]
    versions = _versions(target, record["environment"])
    contract = record.get("contract", "default")
    if record["verdict"] == "UNAVAILABLE":
        reason = record["reason"].replace("|", "/")
        return f"| `{target}` | {contract} | | not judged: {reason} | | | {versions} |"
    counts = ", ".join(f"{n} {verdict}" for verdict, n in record["counts"].items())
    ratios = record["worst_ratio"].items()
    name, worst = max(ratios, key=lambda pair: pair[1] or 0.0)
    return (
        f"| `{target}` | {contract} | {record['dtype']} | {record['verdict']} | "
        f"{counts} | {worst or 0.0:.3g} ({name}) | {versions} |"
    )


def _versions(target: str, environment: dict[str, str]) -> str:
    """The packages behind a target, with the versions that were judged."""
    packages = PACKAGES[re.split(r"[./]", target)[0]]
    told = [f"{package} {environment.get(package, '?')}" for package in packages]
    return ", ".join(told)


def _environment(records: list[dict[str, Any]]) -> str:
    """The machines and interpreters of the records, each once."""
    keys = ("scancheck", "python", "platform", "cpu", "cores", "numpy")
    seen = {
        ", ".join(f"{key} {record['environment'][key]}" for key in keys)
        for record in records
    }
    judged = [record for record in records if "profile" in record]
    profiles = sorted({f"{r['profile']}, seed {r['seed']}" for r in judged})
    lines = ["", "## Environment", "", f"Profile {'; '.join(profiles)}.", ""]
    return "\n".join([*lines, *(f"- {line}" for line in sorted(seen)), ""])
