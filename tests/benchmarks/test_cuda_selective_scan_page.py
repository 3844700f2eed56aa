"""Figures of the page on selective_scan's speed."""

from dataclasses import replace

import pytest
from cuda_selective_scan_page import (
    FEW,
    LONG,
    MANY,
    PEER,
    SLOW,
    input_bytes,
    page,
    share_of_copy,
    share_of_exps,
)
from cuda_speed import Timing

FAST = Timing(
    shape=MANY,
    dtype="bf16",
    direction="forward",
    kernel="fast",
    ms=0.3,
    copy=4.3e12,
    error=1.6e-3,
)


def peer(row: Timing, times: float, error: float = 1.0) -> Timing:
    """The peer so many times slower, with so many times the error."""
    assert row.ms is not None
    errors = None if row.error is None else error * row.error
    return replace(row, kernel=PEER, ms=times * row.ms, error=errors)


def as_kernel(row: Timing, kernel: str, times: float) -> Timing:
    """A variant so many times slower."""
    assert row.ms is not None
    return replace(row, kernel=kernel, ms=times * row.ms)


@pytest.mark.parametrize(
    ("rows", "reached"),
    [
        ([FAST, peer(FAST, 2.61)], True),
        ([FAST, peer(FAST, 2.59)], False),
        ([FAST, peer(FAST, 3, error=0.94)], False),
        ([replace(FAST, shape=LONG), peer(replace(FAST, shape=LONG), 2.2)], False),
        ([FAST, as_kernel(FAST, "reproducible", 2.01)], False),
        ([FAST, as_kernel(FAST, "reproducible", 1.99)], True),
        ([FAST, as_kernel(FAST, "tabulated", 1.11)], False),
        ([FAST, as_kernel(FAST, "accurate", 3.01)], False),
    ],
)
def test_each_requirement_decides(rows: list[Timing], reached: bool) -> None:
    """Speed against the peer and the fast variant, and error against the peer."""
    text, good = page(rows, {"exp_per_s": "4.18e12"})
    assert good is reached
    assert ("FAIL" in text) is not reached


def test_time_per_element_must_not_rise_from_one_batch_row() -> None:
    """Of B 2 to 8 over B 1."""
    one = replace(FAST, shape=FEW, ms=0.035)
    two = replace(one, shape="B2 D1536 L2048", ms=0.069)
    assert page([one, two], {})[1]
    assert not page([one, replace(two, ms=0.071)], {})[1]


def test_slow_gates_ask_for_less_error_by_far() -> None:
    """30 times less than the peer's; how far from the fast variant's is told."""
    fast = replace(FAST, shape=SLOW[0], dtype="fp32", error=9e-6)
    accurate = replace(fast, kernel="accurate", error=2.9e-7)
    text, good = page([fast, accurate, peer(fast, 1)], {})
    assert good and "error of fast over that of accurate" in text
    assert not page([fast, accurate, peer(fast, 1, error=0.9)], {})[1]
    assert page([fast, replace(accurate, error=1e-6)], {})[1]


def test_backward_must_be_twice_as_fast_in_little_memory() -> None:
    """64 MiB, or a tenth of the inputs where that is more."""
    fast = replace(FAST, direction="backward", error=None, extra=40 * 2**20, kept=1)
    assert page([fast, peer(fast, 2.01)], {})[1]
    assert not page([fast, peer(fast, 1.99)], {})[1]
    assert not page([replace(fast, extra=65 * 2**20), peer(fast, 3)], {})[1]


def test_shares_are_of_exponentials_and_bytes() -> None:
    """16 exponentials a channel and step; u, delta, z, y and B, C and the weights."""
    entries = 16 * 1536 * 2048
    exps = share_of_exps(FAST, 4e12)
    assert exps == pytest.approx(entries * 16 / 0.3e-3 / 4e12)
    assert input_bytes(MANY, "bf16") == (
        2 * (3 * entries + 2 * 16 * 16 * 2048) + 4 * 1536 * 18
    )
    copied = share_of_copy(FAST)
    assert copied == pytest.approx(
        (input_bytes(MANY, "bf16") + 2 * entries) / 0.3e-3 / 4.3e12
    )
    assert share_of_exps(replace(FAST, ms=None), 4e12) is None
