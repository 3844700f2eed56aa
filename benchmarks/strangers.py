"""Verdicts on kernels that nobody here wrote, published as text and JSON.

    python benchmarks/strangers.py [--profile quick|full] [-o reports/cpu/strangers]

Judges every adapter that runs in this environment, in each of its dtypes, gradients
included, and lists the others with the reason. Files carry the torch version, so that
runs in several environments stand side by side.
"""

import argparse
import json
import sys
from pathlib import Path


def main() -> int:
    """Writes one text and one JSON file per adapter and dtype; always 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", default="full", choices=("quick", "full"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--match", default="", help="part of the adapter names")
    parser.add_argument("--dtype", default="", help="judge this dtype only")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("reports/cpu/strangers")
    )
    options = parser.parse_args()
    from importlib.metadata import version

    from scancheck import verify
    from scancheck.adapters.catalog import adapters
    from scancheck.environment import describe

    options.output.mkdir(parents=True, exist_ok=True)
    torch = version("torch")
    for kernel in adapters():
        if options.match not in kernel.name:
            continue
        if kernel.unavailable is not None:
            path = options.output / f"{kernel.name}-torch{torch}.json"
            record = {
                "schema_version": 1,
                "verdict": "UNAVAILABLE",
                "target": kernel.name,
                "reason": kernel.unavailable,
                "environment": describe(),
            }
            path.write_text(json.dumps(record, indent=2) + "\n")
            print(f"{kernel.name}: unavailable: {kernel.unavailable}", flush=True)
            continue
        for dtype in kernel.dtypes:
            if options.dtype not in ("", dtype):
                continue
            stem = options.output / f"{kernel.name}-{dtype}-torch{torch}"
            result = verify(
                kernel.name,
                dtypes=[dtype],
                profile=options.profile,
                gradients=True,
                seed=options.seed,
                json_path=Path(f"{stem}.json"),
            )
            Path(f"{stem}.txt").write_text(result.explain() + "\n")
            print(result.explain(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
