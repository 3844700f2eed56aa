"""The page says what the rows say, alone, and the same each time."""

from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import pytest

from scancheck.report.page import page, render
from scancheck.report.words import scientific
from scancheck.study.row import Row
from scancheck.study.store import Study, write_study

VOID = {"meta", "br", "hr", "img", "link", "input", "path", "use"}


class Reader(HTMLParser):
    """Collects what the tests ask for; fails on tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, dict[str, str]]] = []
        self.cells: list[list[str]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data
        if {"td", "th"} & set(self.open):
            self.cells[-1][-1] += data


def read(text: str) -> Reader:
    """The page, parsed to its end."""
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def small_page(small_study: Study) -> str:
    """The page of the small study."""
    return page(small_study, "r.parquet")


def test_tables_hold_the_rows(small_study: Study, small_page: str) -> None:
    """Every way to compute has one line with its worst error, chunk and passes."""
    lines = [cells for cells in read(small_page).cells]
    for row in small_study.rows:
        if row.kind == "case" and row.sequence and row.cotangent is None:
            matching = [
                cells
                for cells in lines
                if cells[:7]
                == [
                    row.op,
                    row.algorithm,
                    row.variant,
                    row.storage,
                    row.compute,
                    row.state,
                    str(row.chunk),
                ]
            ]
            assert len(matching) == 1
            assert matching[0][7] == "1/1"
            assert scientific(row.rms_rel) in matching[0]


def test_answer_names_the_cheapest_way_that_holds(small_page: str) -> None:
    """For bf16 storage it is fp32 arithmetic; bf16 arithmetic is cheaper, and fails."""
    lines = read(small_page).cells
    (line,) = [
        cells for cells in lines if cells[0] == "as good as bf16 storage allows"
    ][:1]
    assert "fp32 arithmetic" in line[1]
    assert "chunk 64" in line[1]
    assert line[2] == "1.8e-3"
    assert "bf16 arithmetic" in line[4]
    assert "5.9 times" in line[4]


def test_figures_say_the_numbers_in_words(small_page: str) -> None:
    """Every figure has alternative text, and the heat maps' holds the worst errors."""
    drawn = [a for tag, a in read(small_page).attributes if tag == "svg"]
    assert len(drawn) == 6
    assert all(a["role"] == "img" and len(a["aria-label"]) > 50 for a in drawn)
    heat = [a["aria-label"] for a in drawn if "Heat map" in a["aria-label"]]
    assert len(heat) == 2
    assert all("bf16, bf16 arithmetic: 1.0e-2 in chunks of 16" in h for h in heat)


def test_page_needs_nothing_from_outside(small_page: str) -> None:
    """No address, no link that leaves the page, no style or script file."""
    text = small_page
    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in text.replace("url(#", "")
    for tag, attributes in read(text).attributes:
        assert tag not in ("link", "img", "iframe")
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")


def test_references_within_the_page_resolve(small_page: str) -> None:
    """Ids are unique, and whatever a figure or link refers to is there."""
    text = small_page
    attributes = [a for _, a in read(text).attributes]
    ids = [a["id"] for a in attributes if "id" in a]
    assert len(ids) == len(set(ids))
    used = {a["href"][1:] for a in attributes if "href" in a}
    used |= {a["clip-path"][5:-1] for a in attributes if "clip-path" in a}
    assert used <= set(ids)


def test_same_rows_give_the_same_bytes(small_study: Study, tmp_path: Path) -> None:
    """Rendering twice gives one text, whatever matplotlib settings are in force."""
    rows = tmp_path / "rows.parquet"
    write_study(small_study, rows)
    render(rows, tmp_path / "one.html")
    with matplotlib.rc_context({"font.size": 30, "axes.grid": True}):
        render(rows, tmp_path / "two.html")
    one = (tmp_path / "one.html").read_bytes()
    assert one == (tmp_path / "two.html").read_bytes()
    assert len(one) > 10_000


def test_seed_and_commands_are_told(small_page: str) -> None:
    """The page names its seed, profile, environment and how to make it again."""
    text = read(small_page).text
    assert "scancheck report --profile quick --seed 7" in text
    assert "scancheck report r.parquet" in text
    assert "an <odd> & name" in text


@pytest.mark.parametrize("field", ["rms_rel", "floor_rel"])
def test_numbers_that_are_missing_are_told_as_missing(
    small_study: Study, field: str
) -> None:
    """A column without a single number gives a page, not an error."""
    rows = tuple(replace(row, **{field: None}) for row in small_study.rows)
    assert "n/a" in read(page(replace(small_study, rows=rows), "r.parquet")).text


@pytest.mark.parametrize("verdict", ["FAIL", "RANGE"])
def test_a_verdict_that_is_no_pass_is_seen(small_study: Study, verdict: str) -> None:
    """One other verdict is counted at the top, and no answer rests on that way."""
    spoilt = [
        replace(row, verdict=verdict)
        if (row.op, row.storage, row.compute, row.kind)
        == ("linear_scan", "bf16", "fp32", "case")
        else row
        for row in small_study.rows
    ]
    reader = read(page(replace(small_study, rows=tuple(spoilt)), "r.parquet"))
    assert f"{verdict}" in reader.text
    lines = [c for c in reader.cells if c[0] == "as good as bf16 storage allows"]
    assert lines[0][1] == "nothing in this sweep"
    assert f"{verdict} on gaussian_slow" in lines[0][4]
    assert "fp32 arithmetic" in lines[1][1]


def test_part_of_a_study_gives_a_page(
    small_study: Study, made_up: Callable[..., Row]
) -> None:
    """Rows of one kind alone, or none at all, still render."""
    for rows in (
        (),
        (made_up(),),
        (made_up(kind="position", token=0, tokens=8),),
        (made_up(kind="length"),),
        (made_up(chunk=None, algorithm="tree"),),
    ):
        text = page(replace(small_study, rows=rows), "r.parquet")
        assert "Precision report" in read(text).text


def test_names_are_escaped(small_study: Study) -> None:
    """A recipe called like a tag stays text, in tables and in figures."""
    rows = tuple(replace(row, recipe='<b>&"x') for row in small_study.rows)
    reader = read(page(replace(small_study, rows=rows), "r.parquet"))
    assert "b" not in [tag for tag, _ in reader.attributes]
    assert '<b>&"x' in reader.text


def test_gradients_are_summed_up_by_way(
    small_study: Study, made_up: Callable[..., Row]
) -> None:
    """The worst error over chunk sizes is in the summary, each one below it."""
    rows = tuple(
        made_up(tensor="dg", sequence=False, cotangent="dense", chunk=n, rms_rel=error)
        for n, error in ((16, 2e-3), (64, 3e-3), (256, None))
    )
    lines = read(page(replace(small_study, rows=rows), "r.parquet")).cells
    assert ["op", "gradient", "bf16: plain"] in lines
    assert ["linear_scan", "dg", "3.0e-3"] in lines
    single = [cells for cells in lines if cells[1:2] == ["dg"] and len(cells) > 3]
    assert [cells[7] for cells in single] == ["2.0e-3", "3.0e-3", "n/a"]


def test_failures_are_laid_out(small_study: Study, made_up: Callable[..., Row]) -> None:
    """A failing case has a table of its steps, and is no section without one."""
    whole = made_up(job="f" * 16, verdict="FAIL", reason="3 of 9 values are beyond")
    steps = [
        replace(
            whole,
            kind="step",
            T=8,
            chunk=4,
            verdict="FAIL" if n > 3 else "PASS",
            token=n,
            step_a=0.5,
            step_b=float(n),
            wanted=1.25,
            got=1.25 if n <= 3 else 2.5,
        )
        for n in range(8)
    ]
    reader = read(page(replace(small_study, rows=(whole, *steps)), "r.parquet"))
    assert "Shrunk to 8 tokens, chunk 4" in reader.text
    assert ["3", "0.5", "3", "1.25", "1.25", ""] in reader.cells
    assert ["4", "0.5", "4", "1.25", "2.5", "wrong"] in reader.cells
    assert "Failures, step by step" not in read(page(small_study, "r.parquet")).text


def test_hazards_have_a_line_each(
    small_study: Study, made_up: Callable[..., Row]
) -> None:
    """A recipe's line holds the error over storing of every way, or the verdict."""
    rows = (
        made_up(section="hazard", recipe="growth", rms_rel=3.4e-3),
        made_up(section="hazard", recipe="growth", variant="full", verdict="RANGE"),
    )
    reader = read(page(replace(small_study, rows=rows), "r.parquet"))
    assert ["input family", "bf16", "bf16, fully compensated"] in reader.cells
    assert ["growth", "2.0", "RANGE"] in reader.cells


def test_known_figures_are_on_the_page(small_page: str) -> None:
    """The range map, the ledger and the quantised memory say what they must."""
    text = read(small_page).text
    for words in ("e^-76.8", "e^-12.8", "12.6 MB", "3.2 GB", "endless"):
        assert words in text


def test_an_unfinished_study_says_so(small_study: Study) -> None:
    """Interrupted rows are told as such, finished ones are not."""
    told = read(page(replace(small_study, jobs=9, done=4), "r.parquet")).text
    assert "Interrupted: 4 of 9 planned cases" in told
    assert (
        "Interrupted"
        not in read(page(replace(small_study, jobs=9, done=9), "r.parquet")).text
    )
