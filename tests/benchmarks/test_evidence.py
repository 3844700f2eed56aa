"""Rows of published evidence: kept whole, with the commit of the code behind them."""

import subprocess
from pathlib import Path

import pytest
from evidence import chosen, commit, read_rows, table, write_rows


def git(folder: Path, *arguments: str) -> None:
    """Runs git there, with a name to commit by."""
    told = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(
        ["git", "-C", str(folder), *told, *arguments], check=True, capture_output=True
    )


def test_rows_come_back(tmp_path: Path) -> None:
    """Texts as they were, in the order that they had; no file is no row."""
    path = tmp_path / "new" / "rows.csv"
    assert read_rows(path) == []
    rows = [{"kernel": "a, b", "seed": "0"}, {"kernel": 'c"', "seed": ""}]
    write_rows(rows, ("kernel", "seed"), path)
    assert read_rows(path) == rows
    assert list(path.parent.iterdir()) == [path]


def test_evidence_itself_does_not_change_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout is marked for edits of the code, not for what a run has written."""
    monkeypatch.chdir(tmp_path)
    assert commit() == "unknown"
    git(tmp_path, "init", "-q")
    (tmp_path / "reports").mkdir()
    for name in ("code.py", "reports/rows.csv"):
        (tmp_path / name).write_text("1")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "x")
    clean = commit()
    assert clean and "dirty" not in clean
    (tmp_path / "reports/rows.csv").write_text("2")
    monkeypatch.chdir(tmp_path / "reports")
    assert commit() == clean
    (tmp_path / "code.py").write_text("2")
    assert commit() == f"{clean}-dirty"


def test_names_are_chosen_by_their_parts() -> None:
    """One of several parts is enough, and none chooses all."""
    assert chosen("faulty.linear_scan.carry", "tail,carry")
    assert not chosen("faulty.linear_scan.carry", "tail,order")
    assert chosen("faulty.linear_scan.carry", "")


def test_a_table_has_a_head_and_a_line_a_row() -> None:
    """As Markdown wants it."""
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
