"""What is seen while a campaign runs: one moving line, or a plain one now and then."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scancheck.campaign.run import OnProgress, Progress

if TYPE_CHECKING:
    from rich.console import Console

EVERY_S = 10.0  # between plain lines


@contextmanager
def fuzz_progress(console: "Console") -> Iterator[OnProgress]:
    """A callback for `run_campaign` that shows cases/s, worst ratio and findings."""
    if not console.is_terminal:
        yield _plain_lines(console)
        return
    with console.status("starting") as status:

        def moved(progress: Progress) -> None:
            status.update(progress_line(progress))

        yield moved


def progress_line(progress: Progress) -> str:
    """How far a campaign is, in one line."""
    seconds = progress.seconds
    speed = progress.cases / seconds if seconds > 0.0 else 0.0
    found = len(progress.found)
    return (
        f"{seconds:.0f} s, {progress.cases} cases, {speed:.1f} cases/s, "
        f"worst ratio that passed {progress.worst_ratio:.3g}, "
        f"{found} {'finding' if found == 1 else 'findings'}"
    )


def _plain_lines(console: "Console") -> OnProgress:
    """Prints a line every few seconds, and at once for each new cause."""
    told_s, told_found = 0.0, 0

    def moved(progress: Progress) -> None:
        nonlocal told_s, told_found
        seconds, found = progress.seconds, len(progress.found)
        if seconds - told_s >= EVERY_S or found > told_found:
            told_s, told_found = seconds, found
            console.print(progress_line(progress), markup=False, soft_wrap=True)

    return moved
