"""`scancheck report`: sweeps, stores the rows, renders the page, says what came out."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from scancheck.errors import CaseInvalid

if TYPE_CHECKING:
    from rich.console import Console

ROWS, PAGE = "rows.parquet", "index.html"
MOST_WORKERS = 8


def report(output: Path, profile: str, seed: int, console: "Console") -> int:
    """Writes rows and page of a profile into the folder `output`; the exit code.

    Raises CaseInvalid for an unknown profile or a folder that cannot be written.
    """
    from scancheck.report.page import render
    from scancheck.report.study_progress import study_progress
    from scancheck.study.plan import plan
    from scancheck.study.store import write_study
    from scancheck.study.sweep import run_study

    jobs = plan(profile, seed)
    _make_folder(output)
    with study_progress(console, len(jobs)) as on_job:
        study = run_study(
            jobs, profile=profile, seed=seed, workers=_workers(), on_job=on_job
        )
    rows, page = output / ROWS, output / PAGE
    write_study(study, rows)
    headline = render(rows, page)
    again = shlex.join(["scancheck", "report", str(rows), "-o", str(output)])
    _tell(console, headline, ("page", page), ("rows", rows), ("again", again))
    return 0


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
