"""All benchmarks as one table, kept with the environment they were run in.

    python benchmarks/all.py [-o reports/cpu/benchmarks.json]

Exits 1 if a target is missed. Run it on a machine that does nothing else.
"""

import argparse
import sys
from pathlib import Path

import start_up
import verify_matrix
import verify_time
from figures import report

import oracles


def main() -> int:
    """Runs everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("reports/cpu/benchmarks.json")
    )
    output = parser.parse_args().output
    found = start_up.figures() + oracles.figures() + verify_time.figures()
    found += verify_matrix.figures()
    return report(found, output)


if __name__ == "__main__":
    sys.exit(main())
