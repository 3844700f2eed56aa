"""Fuzzing of every correct built-in kernel: nothing may be found.

    python benchmarks/fuzz_correct.py [--seconds 1200] [--seed N] [--match NAME]

The time is shared out evenly, in all formats of each kernel, gradients judged. Writes
fuzz_correct.md and exits 1 if anything is found.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    """What came of fuzzing one kernel."""

    kernel: str
    verdict: str
    cases: int
    excused: int  # RANGE
    findings: int
    seconds: float
    worst_ratio: float


def fuzzed(kernel: str, seconds: float, seed: int) -> Line:
    """One kernel for so long, start-up included."""
    from scancheck.gate.fuzz import fuzz
    from scancheck.verdict import Verdict

    with tempfile.TemporaryDirectory() as folder:
        record = fuzz(
            kernel, seconds=seconds, gradients=True, seed=seed, output=folder
        ).record
    return Line(
        kernel=kernel,
        verdict=record.verdict,
        cases=sum(record.counts.values()),
        excused=record.counts.get(Verdict.RANGE, 0),
        findings=len(record.findings),
        seconds=record.duration_s,
        worst_ratio=max((r for r in record.worst_ratio.values() if r), default=0.0),
    )


def page(lines: list[Line], seed: int) -> str:
    """The table as Markdown, with totals first."""
    from scancheck.environment import describe

    cases = sum(line.cases for line in lines)
    minutes = sum(line.seconds for line in lines) / 60.0
    found = sum(line.findings for line in lines)
    text = [
        "# Fuzzing of correct kernels",
        "",
        f"{cases} cases of {len(lines)} kernels in {minutes:.1f} minutes, {found} "
        f"findings; gradients judged, seed {seed}. Made by "
        "`python benchmarks/fuzz_correct.py`.",
        "",
        "| kernel | verdict | cases | RANGE | findings | seconds | worst error / "
        "budget |",
        "|" + "---|" * 7,
    ]
    text += [
        f"| {one.kernel} | {one.verdict} | {one.cases} | {one.excused} | "
        f"{one.findings} | {one.seconds:.0f} | {one.worst_ratio:.4g} |"
        for one in lines
    ]
    told = ", ".join(f"{k} {v}" for k, v in sorted(describe().items()))
    return "\n".join([*text, "", f"Environment: {told}", ""])


def main() -> int:
    """Fuzzes all of them; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--match", default="", help="part of the kernels' names")
    parser.add_argument("-o", "--output", type=Path, default=Path("reports/cpu"))
    options = parser.parse_args()
    from scancheck.kernels.faulty.catalog import controls
    from scancheck.kernels.models.catalog import models

    names = [k.name for k in (*models(), *controls()) if options.match in k.name]
    lines = []
    for done, name in enumerate(names, 1):
        lines.append(fuzzed(name, options.seconds / len(names), options.seed))
        print(f"{done}/{len(names)} {lines[-1]}", flush=True)
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "fuzz_correct.md").write_text(page(lines, options.seed))
    return int(any(line.findings for line in lines))


if __name__ == "__main__":
    sys.exit(main())
