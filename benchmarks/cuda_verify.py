"""`scancheck verify --gradients` on every CUDA kernel, one process for each line.

    python benchmarks/cuda_verify.py [--update] [--match NAMES] [-o reports/h200]

Writes verify.md and .csv. The full profile of the configurations that are chosen
automatically, the quick one of all others, in fp32, fp16 and bf16, by the commands that
a user types; seconds are those of the whole command, starting Python included. Only
the full profile has a limit: those lines have the machine to themselves, of the others
a few share it. Needs a CUDA device. Exit code 1: a line that is not PASS, or takes
longer than it may.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

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

COMMAND = "python benchmarks/cuda_verify.py"
FIELDS = (
    "kernel",
    "dtype",
    "profile",
    "verdict",
    "passed",
    "range",
    "values",
    "worst_ratio",
    "seconds",
    "commit",
)
DTYPES = ("fp32", "fp16", "bf16")
MOST_SECONDS = {"full": 20.0}
WORKERS = {"full": 1, "quick": 4}
"""Commands at a time."""
AUTOMATIC = ("cuda.linear_scan.single_pass.", "cuda.selective_scan.auto.")
"""Where the caller leaves algorithm and chunk to the shape."""

Line = tuple[str, str, str]


def profile_of(name: str) -> str:
    """The profile that a kernel is judged by; options of its own make it another."""
    automatic = name.startswith(AUTOMATIC) and name.count(".") == 3
    return "full" if automatic else "quick"


def judged(name: str, dtype: str, profile: str) -> Row:
    """One command, and what its record says."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "verdict.json"
        words = ["verify", name, "--dtype", dtype, "--profile", profile, "--gradients"]
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "scancheck", *words, "--json", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - start
        if not path.exists():
            raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")
        record = json.loads(path.read_text())
    if record["exit_code"] != 0:
        print(done.stdout, flush=True)
    return {
        "kernel": name,
        "dtype": dtype,
        "profile": profile,
        "verdict": record["verdict"],
        "passed": str(record["counts"].get("PASS", 0)),
        "range": str(record["counts"].get("RANGE", 0)),
        "values": str(record["elements"]),
        "worst_ratio": f"{max(record['worst_ratio'].values()):.3f}",
        "seconds": f"{seconds:.1f}",
        "commit": commit(),
    }


def as_it_must_be(row: Row) -> bool:
    """Everything judged passed, in time."""
    late = float(row["seconds"]) > MOST_SECONDS.get(row["profile"], float("inf"))
    return row["verdict"] == "PASS" and int(row["values"]) > 0 and not late


def page(found: list[Row]) -> str:
    """The rows as Markdown."""
    passed = sum(row["verdict"] == "PASS" for row in found)
    values = sum(int(row["values"]) for row in found)
    slowest = max(float(row["seconds"]) for row in found if row["profile"] == "full")
    commits = ", ".join(sorted({row["commit"] for row in found}))
    return (
        "# `scancheck verify --gradients` on the CUDA kernels\n\n"
        f"{len(found)} commands, {passed} PASS, {values} values of outputs and "
        "gradients judged. RANGE: cases whose declared order must leave the format's "
        "range. Seconds: the whole command with its cache warm; the slowest full "
        f"profile took {slowest:.1f} s of {MOST_SECONDS['full']:.0f}. Commit "
        f"{commits}. Made by `{COMMAND}`.\n\n"
        + table(
            [name.replace("_", " ") for name in FIELDS[:-1]],
            [[row[name] for name in FIELDS[:-1]] for row in found],
        )
        + f"\n{environment()}\n"
    )


def lines(match: str) -> Iterator[Line]:
    """Every line in the kernels' order."""
    from scancheck.kernels.cuda.catalog import kernels

    for kernel in kernels():
        for dtype in DTYPES:
            if chosen(f"{kernel.name} {dtype}", match):
                yield kernel.name, dtype, profile_of(kernel.name)


def main() -> int:
    """Judges the lines that are asked for, or with --update those left."""
    options = options_of(__doc__, "reports/h200").parse_args()
    wanted, order = list(lines(options.match)), list(lines(""))
    kept = read_rows(options.output / "verify.csv") if options.update else []
    found = {line_of(row): row for row in kept if as_it_must_be(row)}
    for row in rows(line for line in wanted if line not in found):
        found[line_of(row)] = row
        print(*line_of(row), row["verdict"], row["seconds"], flush=True)
        done = [found[line] for line in order if line in found]
        write_rows(done, FIELDS, options.output / "verify.csv")
        if any(row["profile"] == "full" for row in done):
            text = page(done)
            (options.output / "verify.md").write_text(text, encoding="utf-8")
    return int(not all(as_it_must_be(found[line]) for line in wanted))


def rows(left: Iterable[Line]) -> Iterator[Row]:
    """Rows as they come, the lines that are timed first."""
    by_profile: dict[str, list[Line]] = {profile: [] for profile in WORKERS}
    for line in left:
        by_profile[line[2]].append(line)
    for profile, own in by_profile.items():
        with ThreadPoolExecutor(WORKERS[profile]) as executor:
            for future in as_completed(executor.submit(judged, *line) for line in own):
                yield future.result()


def line_of(row: Row) -> Line:
    """What identifies a row."""
    return row["kernel"], row["dtype"], row["profile"]


if __name__ == "__main__":
    sys.exit(main())
