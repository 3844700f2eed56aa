"""How soon `scancheck fuzz` finds each planted bug, and how fast it judges.

    python benchmarks/fuzzing.py [--seeds 3] [--cases 10000] [--match NAME --update]

A campaign of its own for each planted bug and seed runs until its first finding is
saved, with the first seed until it is shrunk too; the file is then copied into another
folder and replayed from there in another process. Before that, so many cases of correct
kernels are judged. Run it on a machine that does nothing else.

Rows are kept after each campaign, and what is there at this commit, with no file
changed, is not measured again (--fresh does). Writes time_to_first_finding.md and .csv,
and fuzzing_speed.csv; exits 1 if a bug is not found, a finding does not replay, or a
target is missed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from evidence import Row, chosen, commit, options_of, read_rows, write_rows
from fuzzing_page import LONGEST_S, WORKERS, as_it_must_be, page

if TYPE_CHECKING:
    from scancheck.campaign.run import Found, Progress

FIELDS = (
    "kernel",
    "seed",
    "planted",
    "found",  # True or False
    "seconds",  # until it was saved
    "cases",  # until it was found
    "shrunk_seconds",  # empty where it was not waited for
    "verdict",
    "cause",
    "profile",
    "recipe",
    "dtype",
    "size",
    "replays",  # True or False
    "commit",
)
SPEED_FIELDS = (
    "kernel",
    "seed",
    "cases",
    "pass",
    "range",
    "uncertified",
    "findings",
    "seconds",
    "start_seconds",  # of `scancheck fuzz` for one case
    "commit",
)
CORRECT = (
    "control.linear_scan.chunked_reference",
    "model.selective_scan.chunk64.plain",
)
NAME = "time_to_first_finding"
SPEED = "fuzzing_speed.csv"


def speed(kernel: str, cases: int, seed: int, at: str) -> Row:
    """So many cases of a correct kernel judged, and what a user waits for the first."""
    from scancheck.gate.fuzz import fuzz

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "scancheck", "fuzz", kernel, "--gradients"]
        started = time.monotonic()
        subprocess.run([*command, "--cases", "1", "-o", folder], capture_output=True)
        start = time.monotonic() - started
        record = fuzz(
            kernel,
            cases=cases,
            gradients=True,
            seed=seed,
            workers=WORKERS,
            output=folder,
        ).record
    if record.exit_code == 4:
        raise RuntimeError(f"{kernel}: {record.verdict}; {record.not_judged}")
    counts = record.counts
    return {
        "kernel": kernel,
        "seed": str(seed),
        "cases": str(sum(counts.values())),
        "pass": str(counts.get("PASS", 0)),
        "range": str(counts.get("RANGE", 0)),
        "uncertified": str(counts.get("UNCERTIFIED", 0)),
        "findings": str(len(record.findings)),
        "seconds": f"{record.duration_s:.1f}",
        "start_seconds": f"{start:.1f}",
        "commit": at,
    }


def first_finding(
    kernel: str,
    symptom: str,
    seed: int,
    at: str,
    elsewhere: ProcessPoolExecutor,
    *,
    shrink: bool,
) -> Row:
    """A campaign against a planted bug until its first finding is saved or shrunk."""
    from scancheck.gate.fuzz import fuzz

    first: list[Found] = []

    def watch(progress: "Progress") -> None:
        first[:] = list(progress.found.values())[:1]
        if first and (first[0].shrunk_s if shrink else first[0].after_s):
            raise KeyboardInterrupt  # ends the campaign as Ctrl-C does

    row = dict.fromkeys(FIELDS, "")
    row |= {"kernel": kernel, "seed": str(seed), "planted": symptom, "commit": at}
    with tempfile.TemporaryDirectory() as folder:
        fuzz(
            kernel,
            seconds=LONGEST_S,
            gradients=True,
            seed=seed,
            workers=WORKERS,
            output=folder,
            on_progress=watch,
        )
        row["found"] = str(bool(first))
        if first:
            file = Path(str(first[0].finding.file))
            row["replays"] = str(elsewhere.submit(fails_alike, file).result())
            row |= _told(first[0])
    return row


def _told(found: "Found") -> Row:
    sizes = dict(found.shown.trial.case.sizes)
    shrunk = found.shrunk_s is not None
    return {
        "seconds": f"{found.after_s:.2f}",
        "cases": str(found.after_cases),
        "shrunk_seconds": f"{found.shrunk_s:.2f}" if shrunk else "",
        "verdict": str(found.finding.verdict),
        "cause": found.finding.cause,
        "profile": str(found.finding.profile),
        "recipe": found.drawn.case.recipe,
        "dtype": found.drawn.case.dtype,
        "size": " ".join(f"{n}={sizes[n]}" for n in "BTLDNG" if n in sizes),
    }


def fails_alike(file: Path) -> bool:
    """Whether a copy in another folder, this process's, fails in the same way."""
    from scancheck.campaign.finding_file import read_finding
    from scancheck.campaign.replay import replay_finding
    from scancheck.campaign.trial import CASE_LIMIT_S
    from scancheck.gate.fuzz import loader

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        stored = read_finding(Path(shutil.copy(file, "finding.safetensors")))
        load = loader(stored.target, stored.case.op)
        alike = replay_finding(stored, load, case_limit_s=CASE_LIMIT_S).alike
        os.chdir("/")
    return alike


@contextmanager
def _ready() -> Iterator[ProcessPoolExecutor]:
    """The other process; what a campaign imports is imported from then on."""
    from scancheck.gate.fuzz import fuzz

    with (
        ProcessPoolExecutor(1, get_context("spawn")) as pool,
        tempfile.TemporaryDirectory() as folder,
    ):
        for kernel in CORRECT:
            fuzz(kernel, cases=4, gradients=True, workers=WORKERS, output=folder)
        yield pool


def main() -> int:
    """Measures what is missing, writes rows and page; the exit code."""
    parser = options_of(__doc__, "reports/power")
    parser.add_argument("--seeds", type=int, default=3, help="campaigns for each bug")
    parser.add_argument("--cases", type=int, default=10_000, help="of correct kernels")
    parser.add_argument("--fresh", action="store_true", help="measure all again")
    options = parser.parse_args()
    from scancheck.kernels.faulty.catalog import faulty

    at = commit()
    bugs = {k.name: k.symptom or "" for k in faulty()}
    match, first = options.match, options.seed
    jobs = [
        (name, str(seed))
        for name in bugs
        for seed in range(first, first + options.seeds)
        if chosen(name, match)
    ]
    speed_jobs = [(name, str(first)) for name in CORRECT if chosen(name, match)]

    def left(path: Path, mine: list[tuple[str, str]]) -> list[Row]:
        """The rows that are measured already, and with --update those of others."""
        here = not options.fresh and not at.endswith("-dirty")
        return [
            row
            for row in read_rows(path)
            if ((here and row["commit"] == at) or options.update)
            if (row["kernel"], row["seed"]) not in mine
            or (here and row["commit"] == at)
        ]

    path, speed_path = options.output / f"{NAME}.csv", options.output / SPEED
    speeds, rows = left(speed_path, speed_jobs), left(path, jobs)
    for name, _ in _missing(speed_jobs, speeds):
        speeds.append(speed(name, options.cases // len(CORRECT), first, at))
        print(speeds[-1], flush=True)
        write_rows(speeds, SPEED_FIELDS, speed_path)
    with _ready() as pool:
        for done, (name, seed) in enumerate(missing := _missing(jobs, rows), 1):
            shrink = int(seed) == first
            row = first_finding(name, bugs[name], int(seed), at, pool, shrink=shrink)
            rows.append(row)
            write_rows(rows, FIELDS, path)
            told = [row[n] for n in ("seconds", "shrunk_seconds", "cause", "size")]
            flag = "" if as_it_must_be(row) else "  <-- not as it must be"
            print(f"{done}/{len(missing)} {name} {seed}:", *told, flag, flush=True)
    order = {name: index for index, name in enumerate(bugs)}
    rows.sort(key=lambda row: (order.get(row["kernel"], len(order)), int(row["seed"])))
    write_rows(rows, FIELDS, path)
    text, good = page(rows, speeds)
    path.with_suffix(".md").write_text(text)
    print(text.split("\n|")[0])
    return 0 if good else 1


def _missing(jobs: list[tuple[str, str]], rows: list[Row]) -> list[tuple[str, str]]:
    done = {(row["kernel"], row["seed"]) for row in rows}
    return [job for job in jobs if job not in done]


if __name__ == "__main__":
    sys.exit(main())
