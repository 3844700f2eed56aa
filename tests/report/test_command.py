"""`scancheck report` leaves rows and a page, and says where they are."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import scancheck.study.plan
import scancheck.study.sweep
from scancheck.errors import CaseInvalid, RecordUnreadable
from scancheck.report import command
from scancheck.report.command import report, rerender
from scancheck.study.configurations import Configuration
from scancheck.study.plan import Job
from scancheck.study.row import Row
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
    told = " ".join(text.split())
    assert "is as good as bf16 storage allows in its one case" in told
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


@pytest.mark.usefixtures("few_jobs")
def test_what_was_measured_is_not_measured_again(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run of the same code computes nothing; --fresh and other code do."""
    report(tmp_path, "quick", 1, console)
    before = read_study(tmp_path / "rows.parquet")
    ran: list[Job] = []
    whole = scancheck.study.sweep.job_rows

    def counted(job: Job, elements: int) -> list[Row]:
        ran.append(job)
        return whole(job, elements)

    monkeypatch.setattr(scancheck.study.sweep, "job_rows", counted)
    report(tmp_path, "quick", 1, console)
    assert ran == []
    assert "2 cases are there" in printed(console)
    assert read_study(tmp_path / "rows.parquet").rows == before.rows
    report(tmp_path, "quick", 1, console, fresh=True)
    assert len(ran) == 2
    monkeypatch.setattr(scancheck.study.sweep, "code_digest", lambda: "other")
    report(tmp_path, "quick", 1, console)
    assert len(ran) == 4


@pytest.mark.usefixtures("few_jobs")
@pytest.mark.parametrize("problem", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_run_keeps_what_it_has(
    tmp_path: Path,
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
    problem: type[BaseException],
) -> None:
    """The rows before Ctrl-C, or a failure, are there, render, and are gone on from."""
    whole = scancheck.study.sweep.job_rows

    def broken(job: Job, elements: int) -> list[Row]:
        if job == JOBS[1]:
            raise problem
        return whole(job, elements)

    with monkeypatch.context() as patched:
        patched.setattr(scancheck.study.sweep, "job_rows", broken)
        with pytest.raises(problem):
            report(tmp_path, "quick", 1, console)
    kept = read_study(tmp_path / "rows.parquet")
    assert (kept.done, kept.jobs) == (1, 2)
    assert len(kept.rows) == 2
    if problem is KeyboardInterrupt:
        page = (tmp_path / "index.html").read_text()
        assert "Interrupted: 1 of 2 planned cases" in page
        assert "the same command goes on from here" in printed(console)
    rerender(tmp_path / "rows.parquet", tmp_path, console)
    report(tmp_path, "quick", 1, console)
    whole_again = read_study(tmp_path / "rows.parquet")
    assert (whole_again.done, len(whole_again.rows)) == (2, 4)
    assert whole_again.rows[:2] == kept.rows
    assert "Interrupted" not in (tmp_path / "index.html").read_text()


@pytest.mark.usefixtures("few_jobs")
def test_a_damaged_file_in_the_folder_is_measured_again(
    tmp_path: Path, console: Console
) -> None:
    """What cannot be read is not gone on from."""
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 and no more")
    assert report(tmp_path, "quick", 1, console) == 0
    assert read_study(tmp_path / "rows.parquet").done == 2


def test_own_tensors_are_swept(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--inputs gives a page of the captured tensors, which says what they are."""
    monkeypatch.setattr(command, "_workers", lambda: 1)
    source = np.random.default_rng(1)
    np.savez(
        tmp_path / "mine.npz",
        g=-np.abs(source.standard_normal((1, 40, 2))).astype(np.float32),
        b=source.standard_normal((1, 40, 2)).astype(np.float32),
    )
    report(tmp_path, "quick", 0, console, inputs=tmp_path / "mine.npz")
    study = read_study(tmp_path / "rows.parquet")
    assert {row.section for row in study.rows} == {"captured"}
    assert {row.chunk for row in study.rows if row.algorithm == "chunk"} == {16}
    assert {row.storage for row in study.rows} >= {"fp32", "fp16", "bf16"}
    assert {row.cotangent for row in study.rows} == {None, "dense"}
    page = (tmp_path / "index.html").read_text()
    assert "mine.npz: linear_scan, B = 1, T = 40, D = 2, float32" in page
    assert "scancheck report --profile quick --inputs FILE" in page
