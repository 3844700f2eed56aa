"""Verdicts on kernels that nobody here wrote, published as text, JSON and one table.

    pip install -e '.[accelerated-scan,jax,mambapy]'
    python benchmarks/strangers.py [--profile quick|full] [-o reports/cpu/strangers]

Judges every adapter that runs in this environment, and the kernels of examples/ as a
user would call them, in each of their dtypes, gradients included; lists the others with
the reason. File names carry the torch version, so that runs in several environments
stand side by side; README.md there is made from all files of the folder.
"""

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stranger_list import EXAMPLES, Stranger
from strangers_table import page


def strangers() -> list[Stranger]:
    """The adapters, then the files of examples/."""
    from scancheck.adapters.catalog import adapters

    found = [
        Stranger(
            target=kernel.name,
            op=kernel.op,
            dtypes=kernel.dtypes,
            unavailable=kernel.unavailable,
        )
        for kernel in adapters()
    ]
    return [*found, *EXAMPLES]


def unjudged(stranger: Stranger, reason: str) -> dict[str, Any]:
    """The record of a kernel that was not judged."""
    from scancheck.environment import describe

    return {
        "schema_version": 1,
        "verdict": "UNAVAILABLE",
        "target": stranger.target,
        "contract": stranger.contract or "default",
        "reason": reason,
        "environment": describe(),
    }


def judge(stranger: Stranger, dtype: str, stem: str, profile: str, seed: int) -> str:
    """Judges one kernel in one dtype, writes its two files, and returns the text."""
    from scancheck import verify

    result = verify(
        stranger.target,
        op=stranger.op,
        dtypes=[dtype],
        contract=stranger.contract,
        profile=profile,
        gradients=True,
        seed=seed,
        json_path=Path(f"{stem}.json"),
    )
    text = result.explain() + "\n"
    Path(f"{stem}.txt").write_text(text)
    return text


def main() -> int:
    """Writes one text and one JSON file per kernel and dtype, and the table; 0."""
    from scancheck.errors import CaseInvalid

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", default="quick", choices=("quick", "full"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--match", default="", help="part of the kernels' names")
    parser.add_argument("--dtype", default="", help="judge this dtype only")
    parser.add_argument("--table", action="store_true", help="make the table alone")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("reports/cpu/strangers")
    )
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    chosen = [s for s in strangers() if options.match in s.name and not options.table]
    torch = version("torch")
    for stranger in chosen:
        missing = options.output / f"{stranger.name}-torch{torch}.json"
        missing.unlink(missing_ok=True)
        reason = stranger.unavailable
        for dtype in stranger.dtypes if reason is None else ():
            if options.dtype not in ("", dtype):
                continue
            stem = str(options.output / f"{stranger.name}-{dtype}-torch{torch}")
            try:
                text = judge(stranger, dtype, stem, options.profile, options.seed)
                print(text, flush=True)
            except CaseInvalid as error:  # a contract without a bound yet
                reason = str(error)
        if reason is not None:
            record = unjudged(stranger, reason)
            missing.write_text(json.dumps(record, indent=2) + "\n")
            print(f"{stranger.name}: unavailable: {reason}", flush=True)
    (options.output / "README.md").write_text(page(options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
