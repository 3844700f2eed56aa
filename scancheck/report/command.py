"""`scancheck report`: sweeps, stores the rows, renders the page, says what came out."""

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scancheck.errors import CaseInvalid, RecordUnreadable

if TYPE_CHECKING:
    from rich.console import Console

    from scancheck.study.store import Study

ROWS, PAGE = "rows.parquet", "index.html"
MOST_WORKERS = 16


def report(
    output: Path,
    profile: str,
    seed: int,
    console: "Console",
    *,
    inputs: Path | None = None,
    op: str | None = None,
    fresh: bool = False,
    device: str | None = None,
) -> int:
    """Writes rows and page of a profile into the folder `output`; the exit code.

    On a CUDA `device` the sweep is of the CUDA kernels, which run and are judged there.

    Rows that are there already, measured by the same code, are not measured again
    unless `fresh` is asked for. With `inputs` the sweep is of that file's tensors. On
    Ctrl-C rows and page of what was measured are written before it is passed on.

    Raises CaseInvalid for an unknown profile, unfit inputs, or a folder that cannot be
    written, RecordUnreadable for an inputs file that cannot be read, and
    KernelUnavailable with the reason for a device that is not to be had.
    """
    from scancheck.report.study_progress import study_progress
    from scancheck.study.plan import plan
    from scancheck.study.store import write_study
    from scancheck.study.sweep import known_rows, run_study

    told = ""
    if device not in (None, "cpu"):
        from scancheck.study.device_plan import device_plan, usable_device

        jobs = device_plan(profile, seed, usable_device(device))
    elif inputs is None:
        jobs = plan(profile, seed)
    else:
        from scancheck.captured import in_words, read_captured
        from scancheck.study.captured_plan import captured_plan

        captured = read_captured(str(inputs.resolve()), op)
        jobs, told = captured_plan(captured, profile), in_words(captured)
    _make_folder(output)
    rows = output / ROWS
    before = None if fresh else _stored(rows)
    known = known_rows(before) if before is not None else {}
    if known:
        there = f"going on from {rows}: {len(known)} cases are there"
        console.print(
            f"{there} (--fresh measures again)",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    def save(study: "Study") -> None:
        write_study(replace(study, inputs=told), rows)

    again = ["scancheck", "report", str(rows), "-o", str(output)]
    try:
        with study_progress(console, len(jobs)) as on_job:
            run_study(
                jobs,
                profile=profile,
                seed=seed,
                workers=_workers(),
                on_job=on_job,
                known=known,
                seconds=before.seconds if before is not None and known else 0.0,
                save=save,
            )
    except KeyboardInterrupt:
        _render(console, rows, output / PAGE, again)
        console.print("interrupted: the same command goes on from here")
        raise
    _render(console, rows, output / PAGE, again)
    return 0


def _stored(rows: Path) -> "Study | None":
    """The study of an earlier run in the folder, or None where there is none to use."""
    from scancheck.study.store import read_study

    if not rows.exists():
        return None
    try:
        return read_study(rows)
    except RecordUnreadable:
        return None  # of another version, or damaged: measured again


def _render(console: "Console", rows: Path, page: Path, again: list[str]) -> None:
    from scancheck.report.page import render

    _tell(
        console,
        render(rows, page),
        ("page", page),
        ("rows", rows),
        ("again", shlex.join(again)),
    )


def rerender(parquet: Path, output: Path, console: "Console") -> int:
    """Renders a stored file of rows again, computing nothing; the exit code.

    `output` is a folder for the page, or the page where it ends in .html. Raises
    RecordUnreadable for a file that is not one of `scancheck report`, and CaseInvalid
    for a place that cannot be written.
    """
    from scancheck.report.page import render

    page = output if output.suffix == ".html" else output / PAGE
    _make_folder(page.parent)
    _tell(console, render(parquet, page), ("page", page))
    return 0


def _workers() -> int:
    """One for each core that this process may use, within reason."""
    if hasattr(os, "sched_getaffinity"):
        return min(MOST_WORKERS, len(os.sched_getaffinity(0)))
    return min(MOST_WORKERS, os.cpu_count() or 1)


def _make_folder(folder: Path) -> None:
    """Makes the folder; raises CaseInvalid where no file can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CaseInvalid(f"-o {folder}: cannot be made ({error.strerror})") from error
    if not os.access(folder, os.W_OK):
        raise CaseInvalid(f"-o {folder}: the folder cannot be written")


def _tell(console: "Console", headline: str, *lines: tuple[str, Path | str]) -> None:
    """The headline, then a name and a path or command on each line."""
    console.print(headline, highlight=False, markup=False)
    for name, value in lines:
        text = str(value.resolve()) if isinstance(value, Path) else value
        console.print(
            f"{name:<6} {text}", highlight=False, markup=False, soft_wrap=True
        )
