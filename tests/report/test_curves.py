"""Curves hold the rows they are drawn from."""

import re
from collections.abc import Callable

import pytest

from scancheck.report.curves import (
    in_chunk_figures,
    length_figures,
    position_figures,
)
from scancheck.study.row import Row

MakeRow = Callable[..., Row]


def test_chunk_edges_are_drawn(made_up: MakeRow) -> None:
    """Between the chunks of 1024 tokens in chunks of 256 there are three lines."""

    def lines(chunk: int | None) -> int:
        rows = [
            made_up(
                kind="position", token=128 * n, tokens=128, chunk=chunk, rms_rel=1e-3
            )
            for n in range(8)
        ]
        (drawn,) = position_figures(rows, "linear_scan")
        vertical = r"M ([0-9.]+) [0-9.]+ ?\n?L \1 [0-9.]+ ?\n?\" clip"
        return len(re.findall(vertical, drawn.svg))

    assert lines(None) == 0
    assert lines(256) == 3
    assert lines(64) == 15


def test_one_figure_a_recipe_and_storage(made_up: MakeRow) -> None:
    """Curves that can be compared share a figure, in the order in which they end."""
    rows = [
        made_up(
            kind="position", token=0, tokens=8, storage=storage, variant=v, rms_rel=e
        )
        for storage in ("fp32", "bf16")
        for v, e in (("plain", 1e-3), ("full", 1e-4), ("log_diff", 1e-2))
    ]
    drawn = position_figures(rows, "linear_scan")
    assert [figure.title for figure in drawn] == [
        "fp32 storage, gaussian_slow",
        "bf16 storage, gaussian_slow",
    ]
    assert [label for _, _, label in drawn[0].legend] == [
        "chunk 64, difference of log sums",
        "chunk 64",
        "chunk 64, fully compensated",
    ]
    assert len({(series, mark) for series, mark, _ in drawn[0].legend}) == 3


def test_lengths_are_sorted_and_their_growth_told(made_up: MakeRow) -> None:
    """Lengths come in any order; bounds and growth are in words beside the figure."""
    rows = [
        made_up(
            kind="length", T=T, rms_rel=1e-7 * T, max_budget_rel=0.5, probable_rel=0.25
        )
        for T in (1024, 64, 256)
    ]
    (figures,) = length_figures(rows, "linear_scan").values()
    (drawn,) = figures
    assert drawn.note == (
        "RMS error grows linearly (T^1.00, 95 % sure of 1.00 to 1.00)"
    )
    assert "RMS error 6.4e-6 at 64, 2.6e-5 at 256, 1.0e-4 at 1024" in drawn.svg
    assert "sound bound 5.0e-1 at 64" in drawn.svg
    assert "probable bound 2.5e-1 at 64" in drawn.svg


def test_missing_bounds_leave_the_other_curves(made_up: MakeRow) -> None:
    """Where there is no probable bound, it is told as missing and not drawn."""
    rows = [
        made_up(kind="length", T=T, probable_rel=None, rms_rel=1e-3) for T in (64, 128)
    ]
    (figures,) = length_figures(rows, "linear_scan").values()
    assert "probable bound n/a at 64" in figures[0].svg
    assert "var(--series-3)" not in figures[0].svg
    assert "var(--series-1)" in figures[0].svg


def test_a_bound_at_the_end_of_fp64_is_told_and_not_drawn(
    made_up: MakeRow, recwarn: pytest.WarningsRecorder
) -> None:
    """The axis of the others does not overflow."""
    rows = [
        made_up(kind="length", T=T, max_budget_rel=10.0 ** (4 * T), rms_rel=1e-7)
        for T in (32, 64, 76)
    ]
    (figures,) = length_figures(rows, "linear_scan").values()
    assert "sound bound 1.0e128 at 32, 1.0e256 at 64, 1.0e304 at 76" in figures[0].svg
    assert not recwarn.list


def test_profiles_along_a_chunk_have_no_edges(made_up: MakeRow) -> None:
    """A profile along a chunk ends where the chunk does, and is told as one."""
    rows = [
        made_up(kind="in_chunk", token=n, tokens=1, rms_rel=1e-4 * (n + 1))
        for n in range(64)
    ]
    (drawn,) = in_chunk_figures(rows, "linear_scan")
    assert "RMS error along the chunk" in drawn.svg
    assert "1.0e-4 at the start, 6.4e-3 at the end" in drawn.svg
    assert position_figures(rows, "linear_scan") == []


def test_seeds_of_one_length_are_one_point(made_up: MakeRow) -> None:
    """An RMS over seeds is the RMS of theirs, a largest error the largest."""
    rows = [
        made_up(kind="length", T=T, seed=seed, rms_rel=error, max_rel=error)
        for T in (64, 128, 256)
        for seed, error in enumerate((3e-3, 4e-3))
    ]
    (figures,) = length_figures(rows, "linear_scan").values()
    assert "RMS error 3.5e-3 at 64, 3.5e-3 at 128" in figures[0].svg
    assert "largest error 4.0e-3 at 64" in figures[0].svg
