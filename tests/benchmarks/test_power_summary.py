"""Counts, page and file of the power table, from rows made by hand."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from power_report import page, write_report
from power_rows import About, Row, read_rows, write_rows
from power_rules import LABELS
from power_summary import (
    Share,
    by_bug,
    by_group,
    false_alarms,
    group_of,
    kills,
    shown,
    unnamed,
    wronged,
)

from scancheck.recipes.catalog import RECIPES

ABOUT = About(
    command="python benchmarks/power.py",
    profile="quick",
    seed=0,
    environment={"torch": "2.13.0"},
)
CLEAN = Row(
    kernel="control.linear_scan.chunked_reference",
    op="linear_scan",
    dtype="fp32",
    bug="",
    named=False,
    short=False,
    recipe="gaussian_slow",
    case_id="case-1",
    cotangent="dense",
    verdict="PASS",
    relation="",
    **dict.fromkeys(LABELS, ""),
    assert_close_oracle="",
    allclose_1e4_oracle="",
    rms_0005_oracle="",
)
STALE = replace(
    CLEAN,
    kernel="faulty.linear_scan.stale",
    bug="stale",
    named=True,
    verdict="FAIL",
    scancheck="h",
)


def test_a_bug_is_caught_by_any_of_its_cases() -> None:
    """One rejection is enough, in each op and dtype anew."""
    rows = [
        STALE,
        replace(STALE, case_id="case-2", rms_0005="h da"),
        replace(STALE, dtype="bf16", scancheck=""),
    ]
    assert kills(rows, "scancheck") == Share(part=1, whole=2)
    assert kills(rows, "rms_0005") == Share(part=1, whole=2)
    assert kills(rows, "assert_close") == Share(part=0, whole=2)
    assert shown(rows, "rms_0005") == Share(part=1, whole=2)


def test_what_is_rejected_without_the_bug_finds_no_bug() -> None:
    """Only tensors count that the control passes on the same case."""
    control = replace(CLEAN, allclose_1e4="h")
    same, more = replace(STALE, allclose_1e4="h"), replace(STALE, allclose_1e4="h da")
    assert kills([control, same], "allclose_1e4").part == 0
    assert kills([control, more], "allclose_1e4").part == 1
    elsewhere = replace(same, case_id="case-2")
    assert kills([control, elsewhere], "allclose_1e4").part == 1
    assert by_bug([control, same])["stale"]["allclose_1e4"].part == 0


def test_false_alarms_leave_lost_range_out() -> None:
    """A rejection is false where the kernel is correct and nothing was lost."""
    rows = [
        CLEAN,
        replace(CLEAN, case_id="case-2", twice_baseline="h"),
        replace(CLEAN, case_id="case-3", verdict="RANGE", twice_baseline="h"),
        replace(CLEAN, dtype="bf16", verdict="RANGE", twice_baseline="h"),
        replace(STALE, twice_baseline="h"),
    ]
    assert false_alarms(rows, "twice_baseline") == Share(part=1, whole=2)
    assert wronged(rows, "twice_baseline") == Share(part=1, whole=2)
    assert wronged(rows, "scancheck") == Share(part=0, whole=2)


def test_every_recipe_has_its_group() -> None:
    """Groups are the catalogue's; a row may be older than the catalogue."""
    assert {group_of(name) for name in RECIPES} == {r.group for r in RECIPES.values()}
    assert group_of("long_gone") == "other"
    rows = [STALE, replace(STALE, recipe="long_gone")]
    assert list(by_group(rows, kills)) == ["gaussian_slow alone", "decay", "other"]


def test_page_tells_what_each_rule_misses() -> None:
    """Rates, missed bugs by name, and bugs whose cause is not named."""
    text = page([CLEAN, STALE, replace(CLEAN, kernel="model", rms_0005="h")], ABOUT)
    told = " ".join(text.split())
    assert "| scancheck | 100 % (1 of 1) | 100 % (1 of 1) | 0 % (0 of 2) |" in told
    assert "| RMS ratio 0.005 | 0 % (0 of 1) |" in told
    assert "50.0 % (1 of 2)" in told
    assert "- **scancheck** (0): none" in told
    assert "- **RMS ratio 0.005** (1): stale" in told
    assert "| stale | 1 of 1 | **0 of 1** |" in told
    assert "Made by `python benchmarks/power.py`" in told
    assert "Profile quick, seed 0" in told
    assert unnamed([replace(STALE, named=False)]) == ["faulty.linear_scan.stale fp32"]


def test_report_is_the_same_for_the_same_rows(tmp_path: Path) -> None:
    """Page and figure are whole, stable, and end with the times if those are there."""
    rows = [CLEAN, STALE]
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
        assert write_report(rows, ABOUT, folder)
    first, second = ((f / "power.svg").read_bytes() for f in folders)
    assert first == second
    assert b"gaussian_slow alone" in first
    (folders[0] / "time_to_first_finding.md").write_text("## Time to first finding\n")
    assert write_report(rows, ABOUT, folders[0])
    assert "## Time to first finding" in (folders[0] / "README.md").read_text()


@pytest.mark.parametrize(
    "change", [{"scancheck": ""}, {"named": False}, {"bug": "", "named": False}]
)
def test_report_says_when_scancheck_is_not_perfect(
    tmp_path: Path, change: dict[str, object]
) -> None:
    """A bug missed or not named, or a correct kernel rejected, is an answer too."""
    assert not write_report([CLEAN, replace(STALE, **change)], ABOUT, tmp_path)


def test_rows_come_back(tmp_path: Path) -> None:
    """A file holds the rows and what made them; a foreign file is refused."""
    path = tmp_path / "rows.parquet"
    write_rows([CLEAN, STALE], ABOUT, path)
    assert read_rows(path) == ([CLEAN, STALE], ABOUT)
    assert list(tmp_path.iterdir()) == [path]
    pq.write_table(pa.table({"kernel": ["x"]}), path)
    with pytest.raises(ValueError, match="expected rows"):
        read_rows(path)
