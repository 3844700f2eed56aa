"""Numbers, ways and growth in words."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scancheck.report.ways import ways_of
from scancheck.report.words import (
    MISSING,
    algorithm_label,
    describe_way,
    format_label,
    growth_exponent,
    growth_in_words,
    plain_number,
    scientific,
)
from scancheck.study.row import Row

MakeRow = Callable[..., Row]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.74e-3, "1.7e-3"),
        (2.5e-8, "2.5e-8"),
        (1.0, "1.0e0"),
        (9.96e-4, "1.0e-3"),
        (0.0, "0"),
        (None, MISSING),
        (math.inf, MISSING),
        (math.nan, MISSING),
    ],
)
def test_scientific(value: float | None, expected: str) -> None:
    """Two digits and a short exponent; n/a for what is no number."""
    assert scientific(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.034, "1.03"),
        (12.34, "12.3"),
        (1234.5, "1234"),
        (0.0123, "0.0123"),
        (1e-5, "1.0e-5"),
        (2e6, "2.0e6"),
        (0.0, "0"),
        (None, MISSING),
        (math.inf, MISSING),
    ],
)
def test_plain_number(value: float | None, expected: str) -> None:
    """Three digits without exponent where that is readable."""
    assert plain_number(value) == expected


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(st.floats(1e-12, 1e12))
def test_numbers_can_be_read_back(value: float) -> None:
    """What is written is the value to the digits that are shown."""
    assert math.isclose(float(scientific(value)), value, rel_tol=0.051)
    assert math.isclose(float(plain_number(value)), value, rel_tol=0.051)


@pytest.mark.parametrize(
    ("exponent", "words"),
    [
        (-0.5, "falls"),
        (0.0, "is nearly constant"),
        (0.5, "grows as a square root"),
        (1.0, "grows linearly"),
        (1.5, "grows faster than linearly"),
    ],
)
def test_growth_is_named_after_its_exponent(
    made_up: MakeRow, exponent: float, words: str
) -> None:
    """An exact power of the length is found, and called what it is."""
    rows = [made_up(T=T, rms_rel=1e-7 * T**exponent) for T in (64, 256, 1024, 4096)]
    slope = growth_exponent(rows)
    assert slope is not None
    assert math.isclose(slope, exponent, abs_tol=1e-9)
    assert growth_in_words(rows) == f"{words} (fit: T^{exponent:.2f})"


def test_growth_needs_three_lengths(made_up: MakeRow) -> None:
    """Two lengths, or lengths without an error, give no fit."""
    rows = [made_up(T=64), made_up(T=256), made_up(T=1024, rms_rel=None)]
    assert growth_exponent(rows) is None
    assert "too few lengths" in growth_in_words(rows)


def test_labels_tell_ways_apart(made_up: MakeRow) -> None:
    """Arithmetic, state and variant appear where they are not the usual ones."""
    plain = made_up(storage="bf16")
    state = made_up(storage="bf16", state="bf16")
    short = made_up(storage="bf16", compute="bf16", state="bf16", variant="full")
    assert format_label(plain) == "bf16"
    assert format_label(state) == "bf16, bf16 state"
    assert format_label(short) == "bf16, bf16 arithmetic"
    assert algorithm_label(short) == "chunk 64, fully compensated, bf16 arithmetic"
    assert algorithm_label(made_up(algorithm="hillis_steele", chunk=None)) == (
        "hillis-steele"
    )
    (way,) = ways_of([state])
    assert describe_way(way) == (
        "bf16 storage, fp32 arithmetic, bf16 state, plain, chunk 64"
    )
