"""What is seen while a study runs."""

import io
import re

from rich.console import Console

from scancheck.report.study_progress import study_progress
from scancheck.study.configurations import Configuration
from scancheck.study.plan import Job

JOB = Job(
    configuration=Configuration(op="linear_scan", storage="bf16", chunk=4),
    recipe="gaussian_slow",
    sizes=(("B", 1), ("D", 32), ("T", 12)),
    form="g",
    seed=1,
)


def shown(console: Console, jobs: int) -> str:
    """What a console holds after so many jobs."""
    with study_progress(console, jobs) as on_job:
        for done in range(1, jobs + 1):
            on_job(done, jobs, JOB, [])
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plain_lines_where_there_is_no_terminal() -> None:
    """Ten lines for many jobs, one a job for few, without control characters."""
    text = shown(Console(file=io.StringIO()), 250)
    assert "\x1b" not in text
    lines = text.splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("measured 25 of 250 cases, ")
    assert lines[-1].startswith("measured 250 of 250 cases, ")
    assert all(re.search(r" s, about \d+ s left$", line) for line in lines)
    assert lines[-1].endswith("about 0 s left")
    assert len(shown(Console(file=io.StringIO()), 3).splitlines()) == 3


def test_a_bar_on_a_terminal() -> None:
    """It counts, and says what is being measured."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    text = shown(console, 5)
    assert "5/5" in text
    assert "linear_scan bf16 plain" in text
