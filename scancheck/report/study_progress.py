"""What is seen while a study runs: a bar on a terminal, a few plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scancheck.study.plan import Job
from scancheck.study.row import Row

if TYPE_CHECKING:
    from rich.console import Console

LINES = 10  # about as many where there is no terminal

OnJob = Callable[[int, int, Job, list[Row]], None]


@contextmanager
def study_progress(console: "Console", jobs: int) -> Iterator[OnJob]:
    """A callback for `run_study` that shows how far it is, and on what."""
    if not console.is_terminal:
        yield _plain_lines(console)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("measuring"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[told]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=jobs, told="")

        def moved(done: int, total: int, job: Job, rows: list[Row]) -> None:
            progress.update(task, completed=done, total=total, told=_told(job))

        yield moved


def _told(job: Job) -> str:
    way = job.configuration
    return f"{way.op} {way.storage} {way.variant}"


def _plain_lines(console: "Console") -> OnJob:
    """Prints a line every tenth of the way, with the time left at the same pace."""
    started = time.monotonic()
    known: list[int] = []  # jobs that an earlier run had done

    def moved(done: int, total: int, job: Job, rows: list[Row]) -> None:
        if not known:
            known.append(done - 1)
        if done == total or done * LINES // total > (done - 1) * LINES // total:
            seconds = time.monotonic() - started
            left = seconds * (total - done) / (done - known[0])
            console.print(
                f"measured {done} of {total} cases, {seconds:.0f} s, "
                f"about {left:.0f} s left"
            )

    return moved
