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
    instruct,
    kind_label,
    listed,
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
        (999.4, "999"),
        (999.6, "1000"),
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
    assert instruct(way) == (
        "store in bf16, compute in fp32, keep the state in bf16, in chunks of 64"
    )
    assert kind_label(short) == "bf16, bf16 arithmetic, fully compensated"
    assert kind_label(plain) == "bf16"


@pytest.mark.parametrize(
    ("words", "expected"),
    [((), ""), ((1,), "1"), ((1, 2), "1 and 2"), ((1, 2, 3), "1, 2 and 3")],
)
def test_listed(words: tuple[int, ...], expected: str) -> None:
    """Commas, and one word between the last two."""
    assert listed(words) == expected
