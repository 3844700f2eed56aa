"""What the page says of range, memory and bytes follows from the formats alone."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scancheck.formats import FORMATS, round_exact
from scancheck.report.ledger import MAMBA_LAYER, bytes_in_words, ledger, ledgers
from scancheck.report.memory import (
    quantised,
    quantised_memory,
    stored_memory,
    tokens_in_words,
)
from scancheck.report.range_map import (
    LOG_DECAYS,
    measured_ranges,
    range_cell,
    range_map,
    status,
)
from scancheck.study.row import Row


def test_ledger_of_a_mamba_layer() -> None:
    """States at the edges of chunks of 256 take 12.6 MB, those of all tokens 3.2 GB."""
    found = ledger(**MAMBA_LAYER, chunk=256)
    assert found.chunk_edges == 16 * 1536 * 16 * 8 * 4 == 12_582_912
    assert found.every_token == 3_221_225_472
    assert bytes_in_words(found.chunk_edges) == "12.6 MB"
    assert bytes_in_words(found.every_token) == "3.2 GB"
    assert found in ledgers()


@pytest.mark.parametrize(("steps", "edges"), [(1, 1), (8, 1), (9, 2), (16, 2)])
def test_a_part_of_a_chunk_keeps_a_state(steps: int, edges: int) -> None:
    """Chunks are counted up."""
    found = ledger(batch=1, channels=1, states=1, steps=steps, chunk=8)
    assert found.chunk_edges == 4 * edges
    assert found.every_token == 4 * steps


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (2.5e9, "2.5 GB"),
        (3e13, "30000.0 GB"),
    ],
)
def test_bytes_in_words(count: float, words: str) -> None:
    """Decimal units."""
    assert bytes_in_words(count) == words


@pytest.mark.parametrize(
    ("log", "chunk", "text"),
    [(-0.3, 256, "e^-76.8"), (-0.05, 256, "e^-12.8"), (0.0, 64, "1")],
)
def test_products_are_told_as_powers_of_e(log: float, chunk: int, text: str) -> None:
    """A mean log decay of -0.3 over 256 tokens is e^-76.8, of -0.05 e^-12.8."""
    assert range_cell(log, chunk).text == text
    if log in LOG_DECAYS:
        shown = {cell.text for line in range_map() for cell in line.cells}
        assert text in shown


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(name=st.sampled_from(sorted(FORMATS)), log=st.floats(-760.0, 0.0))
def test_status_is_what_rounding_gives(name: str, log: float) -> None:
    """Zero, subnormal and overflow are said where the format has them."""
    fmt = FORMATS[name]
    if fmt.name == "fp64":
        return
    product = round_exact(fmt, math.exp(log))
    inverse = round_exact(fmt, math.exp(-log)) if log > -700 else math.inf
    got = status(fmt, log)
    # Within rounding of a limit either word is right.
    limits = (fmt.smallest_subnormal / 2, fmt.smallest_normal, 1 / fmt.largest)
    if any(abs(log - math.log(x)) < 2 * fmt.unit_roundoff for x in limits):
        return
    assert (got == "zero") == (product == 0.0)
    if got == "fits":
        assert product >= fmt.smallest_normal
        assert math.isfinite(inverse)
    if got == "inverse overflows":
        assert not math.isfinite(inverse)
    if got == "subnormal":
        assert 0.0 < product < fmt.smallest_normal


def test_strongest_chain_of_every_recipe_is_mapped(
    made_up: Callable[..., Row],
) -> None:
    """One line a recipe, the mildest first, with the strongest of its cases."""
    rows = [
        made_up(recipe="a", strongest_log_decay=-0.1),
        made_up(recipe="a", strongest_log_decay=-0.3),
        made_up(recipe="b", strongest_log_decay=-0.05),
        made_up(recipe="c", strongest_log_decay=None),
    ]
    lines = measured_ranges(rows)
    assert [line.label for line in lines] == ["b: -0.05", "a: -0.3"]
    assert "e^-76.8" in [cell.text for cell in lines[1].cells]


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(value=st.floats(-16.0, 16.0), bits=st.sampled_from((4, 8)))
def test_quantised_is_the_nearest_of_the_values(value: float, bits: int) -> None:
    """No other of the evenly spaced values is closer."""
    top = 2 ** (bits - 1) - 1
    values = [16.0 * n / top for n in range(-top, top + 1)]
    nearest = min(abs(value - v) for v in values)
    assert math.isclose(
        abs(quantised(value, 16.0, bits) - value), nearest, abs_tol=1e-9
    )


def test_four_bits_make_the_longest_memory_endless() -> None:
    """A = -1 becomes 0 in 4 bits; in 8 bits, and of its logarithm, it keeps 100."""
    first, *_, last = quantised_memory()
    assert (first.a, first.exact) == (1, 100.0)
    assert math.isinf(first.of_a[1])
    assert math.isclose(first.of_a[0], 100.0, rel_tol=0.01)
    assert all(math.isclose(value, 100.0) for value in first.of_log)
    assert all(math.isclose(value, last.exact) for value in (*last.of_a, *last.of_log))
    for line in quantised_memory():
        assert all(abs(value / line.exact - 1.0) < 0.25 for value in line.of_log)


def test_a_slow_decay_in_bf16_is_one() -> None:
    """0.9999 becomes 1, its memory endless; fp32 keeps it."""
    slow = stored_memory()[-1]
    stored = {name: (value, memory) for name, value, memory in slow.stored}
    assert slow.decay == 0.9999
    assert stored["bf16"] == (1.0, math.inf)
    assert math.isclose(stored["fp32"][1], slow.exact, rel_tol=1e-3)
    assert tokens_in_words(math.inf) == "endless"
    assert tokens_in_words(slow.exact) == "9999"
