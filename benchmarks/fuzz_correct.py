"""Fuzzing of every correct built-in kernel: nothing may be found.

    python benchmarks/fuzz_correct.py [--seconds 1200] [--seed N]
    python benchmarks/fuzz_correct.py --match NAME --update

The time is shared out evenly, in all formats of each kernel, gradients judged. Writes
fuzz_correct.csv, a line per kernel with the commit it was judged at, and
fuzz_correct.md; exits 1 if anything is found. With --update the lines of other kernels
stay as they are.
"""

import sys
import tempfile

from evidence import (
    Row,
    chosen,
    commit,
    environment,
    options_of,
    read_rows,
    table,
    write_rows,
)

FIELDS = (
    "kernel",
    "verdict",
    "cases",
    "pass",
    "range",
    "uncertified",
    "findings",
    "seconds",
    "worst_ratio",
    "seed",
    "commit",
)


def fuzzed(kernel: str, seconds: float, seed: int, at: str) -> Row:
    """One kernel for so long, start-up included."""
    from scancheck.gate.fuzz import fuzz

    with tempfile.TemporaryDirectory() as folder:
        record = fuzz(
            kernel, seconds=seconds, gradients=True, seed=seed, output=folder
        ).record
    counts = record.counts
    worst = max((r for r in record.worst_ratio.values() if r), default=0.0)
    return {
        "kernel": kernel,
        "verdict": record.verdict,
        "cases": str(sum(counts.values())),
        "pass": str(counts.get("PASS", 0)),
        "range": str(counts.get("RANGE", 0)),
        "uncertified": str(counts.get("UNCERTIFIED", 0)),
        "findings": str(len(record.findings)),
        "seconds": f"{record.duration_s:.0f}",
        "worst_ratio": f"{worst:.4g}",
        "seed": str(seed),
        "commit": at,
    }


def page(rows: list[Row]) -> str:
    """The table as Markdown, with totals first."""
    total = {
        name: sum(int(row[name]) for row in rows)
        for name in ("cases", "pass", "range", "uncertified", "findings", "seconds")
    }
    seeds = ", ".join(sorted({row["seed"] for row in rows}))
    commits = ", ".join(sorted({row["commit"] for row in rows}))
    shown = [name for name in FIELDS if name != "seed"]
    capitals = {"pass", "range", "uncertified"}
    heads = {name: name.upper() for name in capitals}
    heads["worst_ratio"] = "worst error / budget"
    return (
        "# Fuzzing of correct kernels\n\n"
        f"{total['cases']} cases of {len(rows)} kernels in "
        f"{total['seconds'] / 60:.1f} minutes, {total['findings']} findings: "
        f"{total['pass']} PASS, {total['range']} RANGE (the algorithm that is declared "
        "must leave the range of its format), "
        f"{total['uncertified']} UNCERTIFIED (no reference could be certified, so "
        "nothing is said). A verdict BLIND says that so few cases saw not every part "
        f"of a kernel. Outputs and gradients, seed {seeds}, commit {commits}. Made by "
        "`python benchmarks/fuzz_correct.py`.\n\n"
        + table(
            [heads.get(name, name) for name in shown],
            [[row[name] for name in shown] for row in rows],
        )
        + f"\n{environment()}\n"
    )


def main() -> int:
    """Fuzzes all of them; the exit code."""
    parser = options_of(__doc__, "reports/cpu")
    parser.add_argument("--seconds", type=float, default=1200.0)
    options = parser.parse_args()
    from scancheck.kernels.faulty.catalog import controls
    from scancheck.kernels.models.catalog import models

    at = commit()
    every = [kernel.name for kernel in (*models(), *controls())]
    names = [name for name in every if chosen(name, options.match)]
    path = options.output / "fuzz_correct.csv"
    kept = read_rows(path) if options.update else []
    rows = [row for row in kept if row["kernel"] not in names]
    for done, name in enumerate(names, 1):
        share = options.seconds / len(names)
        row = fuzzed(name, share, options.seed, at)
        rows.append(row)
        rows.sort(key=lambda row: row["kernel"])
        told = ", ".join(f"{row[n]} {n}" for n in ("cases", "findings", "seconds"))
        print(f"{done}/{len(names)} {name} {row['verdict']}: {told}", flush=True)
        write_rows(rows, FIELDS, path)
        path.with_suffix(".md").write_text(page(rows))
    harness = any(row["verdict"] in ("HARNESS", "INTERRUPTED") for row in rows)
    return int(harness or any(row["findings"] != "0" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
