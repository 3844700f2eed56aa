"""`scancheck report` leaves rows and a page, and says where they are."""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

import scancheck.study.plan
from scancheck.errors import CaseInvalid, RecordUnreadable
from scancheck.report import command
from scancheck.report.command import report, rerender
from scancheck.study.configurations import Configuration
from scancheck.study.plan import Job
from scancheck.study.store import Study, read_study, write_study

JOBS = tuple(
    Job(
        configuration=Configuration(op="linear_scan", storage=storage, chunk=4),
        recipe="gaussian_slow",
        sizes=(("B", 1), ("D", 32), ("T", 12)),
        form="g",
        seed=1,
    )
    for storage in ("fp32", "bf16")
)


@pytest.fixture
def console() -> Console:
    """A console that is no terminal and remembers what was printed."""
    return Console(file=io.StringIO(), width=60)


def printed(console: Console) -> str:
    """What the console has shown so far."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def few_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small jobs in this process instead of a profile in several."""
    monkeypatch.setattr(scancheck.study.plan, "plan", lambda profile, seed: JOBS)
    monkeypatch.setattr(command, "_workers", lambda: 1)


@pytest.mark.usefixtures("few_jobs")
def test_report_leaves_rows_and_page(tmp_path: Path, console: Console) -> None:
    """The folder is made and holds two files alone; both are named in the output."""
    output = tmp_path / "deep" / "report"
    assert report(output, "quick", 1, console) == 0
    assert sorted(path.name for path in output.iterdir()) == [
        "index.html",
        "rows.parquet",
    ]
    text = printed(console)
    for name in ("index.html", "rows.parquet"):
        assert str((output / name).resolve()) in text
    assert "is as good as bf16 storage allows in its one case" in text.replace(
        "\n", " "
    )
    assert "measured 2 of 2 cases" in text
    assert len(read_study(output / "rows.parquet").rows) == 4


@pytest.mark.usefixtures("few_jobs")
def test_rendering_again_gives_the_same_page(tmp_path: Path, console: Console) -> None:
    """The command that is printed computes nothing and gives the same bytes."""
    report(tmp_path, "quick", 1, console)
    assert f"scancheck report {tmp_path / 'rows.parquet'} -o {tmp_path}" in printed(
        console
    )
    before = (tmp_path / "index.html").read_bytes()
    elsewhere = tmp_path / "elsewhere"
    assert rerender(tmp_path / "rows.parquet", elsewhere, console) == 0
    assert (elsewhere / "index.html").read_bytes() == before
    assert rerender(tmp_path / "rows.parquet", tmp_path / "p.html", console) == 0
    assert (tmp_path / "p.html").read_bytes() == before


def test_a_foreign_file_is_refused_and_nothing_written(
    tmp_path: Path, console: Console
) -> None:
    """A file that is no study gives one message; there is no page."""
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(RecordUnreadable, match=r"notes\.txt: expected a Parquet file"):
        rerender(path, tmp_path / "out", console)
    assert not (tmp_path / "out" / "index.html").exists()


def test_a_file_where_the_folder_should_be(tmp_path: Path, console: Console) -> None:
    """-o that names a file, or lies below one, is told before anything is measured."""
    (tmp_path / "file").write_text("")
    for output in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CaseInvalid, match=r"-o .*file"):
            report(output, "quick", 0, console)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path, console: Console) -> None:
    """A read-only folder is told before anything is measured."""
    tmp_path.chmod(0o500)
    with pytest.raises(CaseInvalid, match="cannot be written"):
        report(tmp_path, "quick", 0, console)


def test_unknown_profile_makes_no_folder(tmp_path: Path, console: Console) -> None:
    """A wrong profile is told first."""
    with pytest.raises(CaseInvalid, match="got 'fast'"):
        report(tmp_path / "out", "fast", 0, console)
    assert not (tmp_path / "out").exists()


def test_markup_in_paths_is_text(
    tmp_path: Path, console: Console, small_study: Study
) -> None:
    """A folder called like a colour is printed as it is called."""
    folder = tmp_path / "[red]"
    folder.mkdir()
    write_study(small_study, folder / "rows.parquet")
    rerender(folder / "rows.parquet", folder, console)
    assert "[red]" in printed(console)
