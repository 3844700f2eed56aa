"""How fast `scancheck fuzz` judges, and how soon it finds each planted bug.

    python benchmarks/fuzzing.py [--seconds 60] [--seeds 3] [--match NAME]

Cases/s on correct kernels, start-up included, and the seconds until the first finding
of each planted bug, as the median over seeds. Run it on a machine that does nothing
else.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from figures import Figure, report

from scancheck.campaign.run import Progress
from scancheck.gate.fuzz import fuzz
from scancheck.kernels.faulty.catalog import faulty

CORRECT = (
    "control.linear_scan.chunked_reference",
    "model.selective_scan.chunk64.plain",
)
LONGEST_S = 120.0


def cases_per_second(kernel: str, seconds: float) -> float:
    """Judged cases over wall-clock seconds; raises if anything is found."""
    with tempfile.TemporaryDirectory() as folder:
        record = fuzz(kernel, seconds=seconds, gradients=True, output=folder).record
    if record.findings or record.exit_code == 4:
        raise RuntimeError(f"{kernel}: {record.verdict}, expected no finding")
    return sum(record.counts.values()) / record.duration_s


def seconds_to_first(kernel: str, seed: int) -> float:
    """Seconds from the start of a campaign to its first finding, or LONGEST_S."""
    first = [LONGEST_S]

    def watch(progress: Progress) -> None:
        if progress.found:
            first[0] = min(found.after_s for found in progress.found.values())
            raise KeyboardInterrupt  # ends the campaign as Ctrl-C does

    with tempfile.TemporaryDirectory() as folder:
        fuzz(
            kernel,
            seconds=LONGEST_S,
            gradients=True,
            seed=seed,
            output=folder,
            on_progress=watch,
        )
    return first[0]


def figures(seconds: float, seeds: int, match: str = "") -> list[Figure]:
    """Speeds on correct kernels, then a line for each planted bug."""
    found = [
        Figure(
            name="fuzz, verified cases/s",
            shape=f"{kernel}, all its dtypes, gradients",
            value=cases_per_second(kernel, seconds),
            unit="1/s",
            target=20.0,
            at_least=True,
        )
        for kernel in CORRECT
    ]
    for kernel in faulty():
        if match in kernel.name:
            times = [seconds_to_first(kernel.name, seed) for seed in range(seeds)]
            found.append(
                Figure(
                    name="fuzz, first finding",
                    shape=f"{kernel.name}, median of {seeds} seeds",
                    value=statistics.median(times),
                    unit="s",
                    target=LONGEST_S,
                    at_least=False,
                )
            )
    return found


def main() -> int:
    """Measures everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--match", default="")
    parser.add_argument("-o", "--output", type=Path, default=None)
    options = parser.parse_args()
    found = figures(options.seconds, options.seeds, options.match)
    return report(found, options.output)


if __name__ == "__main__":
    sys.exit(main())
