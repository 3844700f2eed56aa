"""When each planted bug turns red, on which recipe, and by which cause it is named.

    python benchmarks/planted_bugs.py [--match carry] [--dtypes fp32,bf16] [-o FOLDER]

Each bug is judged case by case, in the order of `scancheck verify --gradients`, until a
red case is named by the cause that the bug declares. Writes planted_bugs.csv, a line
per kernel and dtype, and planted_bugs.md; exits 1 if a bug is never red or never named.
"""

import argparse
import csv
import sys
import time
from pathlib import Path
from typing import Any

FIELDS = (
    "kernel",
    "dtype",
    "verdict",
    "cause",
    "expected_cause",
    "first_red_recipe",
    "first_red_check",
    "cases_until_red",
    "cases_until_named",
    "seconds",
)


class Named(Exception):
    """The bug has been named; no further case is needed."""


def judge(kernel: Any, dtype: str, profile: str, seed: int) -> dict[str, object]:
    """One line of the table."""
    from scancheck.checks.experiments import likely_cause
    from scancheck.contract import Contract
    from scancheck.gate.findings import findings_of
    from scancheck.gate.loop import Judging
    from scancheck.verdict import RED

    run = Judging(
        kernel=kernel,
        contract=kernel.contract or Contract(),
        declared=kernel.contract is not None,
        profile=profile,
        gradients=True,
        require=frozenset(),
        seed=seed,
        dtypes=(dtype,),
    )
    row: dict[str, object] = dict.fromkeys(FIELDS, "")
    row |= {"kernel": kernel.name, "dtype": dtype, "verdict": "PASS"}
    row |= {"expected_cause": kernel.symptom}
    causes: dict[str, None] = {}

    def look(done: int, total: int, report: Any) -> None:
        if report.verdict not in RED:
            return
        red = [item for item in run.tally.red if item.report is report]
        told = [likely_cause(i.kernel, i.report, i.check)[0] for i in red]
        if kernel.symptom not in told:  # a wider contract may say more
            told += [finding.cause for finding in findings_of(run.op, red, "")]
        if not row["cases_until_red"]:
            row["verdict"] = report.verdict
            row["cases_until_red"] = done
            row["first_red_recipe"] = report.case.recipe
            check = red[0].check
            row["first_red_check"] = " ".join(filter(None, (check.check, check.tensor)))
        causes.update(dict.fromkeys(told))
        if kernel.symptom in causes:
            row["cases_until_named"] = done
            raise Named

    started = time.monotonic()
    try:
        run.judge(None, look)
    except Named:
        causes = {kernel.symptom: None}
    row["cause"] = " ".join(causes)
    row["seconds"] = f"{time.monotonic() - started:.1f}"
    return row


def table(rows: list[dict[str, object]], profile: str, seed: int) -> str:
    """The rows as Markdown."""
    from scancheck.environment import describe

    named = sum(bool(row["cases_until_named"]) for row in rows)
    bugs = {str(row["kernel"]).split(".")[-1] for row in rows}
    shown = [name for name in FIELDS if name != "expected_cause"]
    lines = [
        "# Planted bugs: how soon they are red, and by what they are named",
        "",
        f"{len(bugs)} bugs, {len(rows)} kernels x dtypes; {named} named. Profile "
        f"{profile}, seed {seed}. Made by `python benchmarks/planted_bugs.py`.",
        "",
        "| " + " | ".join(name.replace("_", " ") for name in shown) + " |",
        "|" + "---|" * len(shown),
        *("| " + " | ".join(str(row[name]) for name in shown) + " |" for row in rows),
        "",
        "Environment: " + ", ".join(f"{k} {v}" for k, v in sorted(describe().items())),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Judges the planted bugs; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", default="quick", choices=("quick", "full"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--match", default="", help="parts of names, comma-separated")
    parser.add_argument("--dtypes", default="fp32,bf16,fp16,fp64")
    parser.add_argument("-o", "--output", type=Path, default=Path("reports/cpu"))
    options = parser.parse_args()
    from scancheck.kernels.faulty.catalog import faulty

    rows = []
    for kernel in faulty():
        if not any(part in kernel.name for part in options.match.split(",")):
            continue
        for dtype in kernel.dtypes:
            if dtype in options.dtypes.split(","):
                row = judge(kernel, dtype, options.profile, options.seed)
                flag = "" if row["cases_until_named"] else "   <-- not named"
                print(*(row[name] for name in FIELDS), flag, sep="  ", flush=True)
                rows.append(row)
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / "planted_bugs.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    text = table(rows, options.profile, options.seed)
    (options.output / "planted_bugs.md").write_text(text)
    return 0 if all(row["cases_until_named"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
