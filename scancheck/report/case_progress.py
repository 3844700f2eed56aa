"""A bar on a terminal while cases are judged, and nothing anywhere else."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scancheck.checks.oracle import CaseReport
from scancheck.verdict import RED

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def case_progress(
    console: "Console",
) -> Iterator[Callable[[int, int, CaseReport], None] | None]:
    """A callback for `verify` that moves a bar; None where there is no terminal."""
    if not console.is_terminal:
        yield None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    red = 0
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[told]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("cases", total=None, told="")

        def moved(done: int, total: int, report: CaseReport) -> None:
            nonlocal red
            red += report.verdict in RED
            told = f"{red} red" if red else ""
            what = "cases" if done < total else "relations, diagnosis"
            progress.update(
                task, description=what, completed=done, total=total, told=told
            )

        yield moved
