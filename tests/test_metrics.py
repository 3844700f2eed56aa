"""Each mask of the metrics, on single elements whose right answer is plain."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scancheck.bounds.budget import Allowance
from scancheck.formats import FP8_E4M3, FP16, FP32, round_array
from scancheck.metrics import TensorMetrics, effective_bits, measure
from scancheck.oracles.ladder import CERTIFIED_SHARE, Reference

INF, NAN = np.inf, np.nan


def measured(
    got: Any,
    truth: Any,
    allowed: Any,
    *,
    lo: float = 0.0,
    radius: float = 0.0,
    overflows: bool = False,
    fmt: Any = FP32,
) -> TensorMetrics:
    """The metrics of arrays, or of one number each."""
    got, truth, allowed = (
        np.atleast_1d(np.array(x, float)) for x in (got, truth, allowed)
    )
    shape = got.shape
    reference = Reference(
        hi=np.broadcast_to(truth, shape),
        lo=np.full(shape, lo),
        radius=np.full(shape, radius),
        certified=np.ones(shape, dtype=bool),
        rung="fp64",
    )
    allowance = Allowance(
        error=np.broadcast_to(allowed, shape),
        overflows=np.full(shape, overflows),
        largest=fmt.largest,
        storage_u=fmt.unit_roundoff,
        magnitude=np.abs(reference.hi),
        has_infinity=fmt.has_infinity,
    )
    return measure("h", got, reference, allowance)


def kinds(found: TensorMetrics) -> set[str]:
    """What a single element is."""
    masks = ("nonfinite", "wrong_kind", "excused", "uncertified", "vacuous", "wrong")
    return {name for name in masks if getattr(found, name)[0]}


@pytest.mark.parametrize(
    ("got", "truth", "allowed", "ratio", "expected"),
    [
        (1.0, 1.0, 0.5, 0.0, set()),
        (1.25, 1.0, 0.5, 0.5, set()),
        (1.5, 1.0, 0.5, 1.0, set()),
        (1.75, 1.0, 0.5, 1.5, {"wrong"}),
        (0.25, 1.0, 0.5, 1.5, {"wrong"}),
        (1.0, 1.0, 0.0, 0.0, set()),
        (1.5, 1.0, 0.0, INF, {"wrong"}),
        (0.0, 0.0, 0.0, 0.0, {"vacuous"}),
        (0.5, 0.0, 0.0, INF, {"vacuous", "wrong"}),
        (-0.0, 0.0, 0.0, 0.0, {"vacuous"}),
        (1.5, 1.0, 1.0, 0.5, {"vacuous"}),
        (1.5, 1.0, 0.999, 0.5 / 0.999, set()),
        (1e9, 1.0, INF, 0.0, {"vacuous"}),
        (NAN, 1.0, 0.5, 0.0, {"nonfinite", "wrong"}),
        (INF, 1.0, 0.5, 0.0, {"nonfinite", "wrong"}),
        (-INF, 1.0, 0.5, 0.0, {"nonfinite", "wrong"}),
    ],
)
def test_finite_truth(
    got: float, truth: float, allowed: float, ratio: float, expected: set[str]
) -> None:
    """Error over budget where both are numbers; NaN and infinity are NONFINITE."""
    found = measured(got, truth, allowed)
    assert found.ratio[0] == pytest.approx(ratio, rel=1e-15)
    assert kinds(found) == expected


@pytest.mark.parametrize(
    ("got", "truth", "expected"),
    [
        (NAN, 1000.0, set()),
        (448.0, 1000.0, set()),
        (-448.0, -1000.0, set()),
        (416.0, 1000.0, {"wrong_kind", "wrong"}),
        (-448.0, 1000.0, {"wrong_kind", "wrong"}),
        (NAN, 460.0, set()),
        (448.0, 460.0, set()),
        (448.0, 448.0, set()),
        (NAN, 400.0, {"nonfinite", "wrong"}),
    ],
)
def test_overflow_without_infinity(
    got: float, truth: float, expected: set[str]
) -> None:
    """In e4m3 an overflow is NaN or the largest value of its sign, and nothing else."""
    found = measured(got, truth, 16.0, fmt=FP8_E4M3)
    assert kinds(found) == expected


@pytest.mark.parametrize("got", [NAN, INF, -INF])
def test_what_the_range_predictor_saw_is_excused(got: float) -> None:
    """A value that is not finite is excused where an intermediate may overflow."""
    assert kinds(measured(got, 1.0, 0.5, overflows=True)) == {"excused"}


def test_a_wrong_number_is_never_excused() -> None:
    """The range predictor excuses no finite value beyond the budget."""
    assert kinds(measured(2.0, 1.0, 0.5, overflows=True)) == {"wrong"}


LARGEST = FP16.largest  # 65504
EDGE = 65520.0  # half an ulp beyond it: from here on fp16 rounds to infinity


@pytest.mark.parametrize(
    ("got", "truth", "allowed", "expected"),
    [
        (LARGEST, LARGEST, 16.0, set()),
        (INF, LARGEST, 15.0, {"nonfinite", "wrong"}),
        (INF, LARGEST, 16.0, set()),
        (INF, EDGE, 0.0, set()),
        (LARGEST, EDGE, 16.0, set()),
        (INF, EDGE - 1.0, 0.5, {"nonfinite", "wrong"}),
        (INF, 70000.0, 16.0, set()),
        (-INF, 70000.0, 16.0, {"wrong_kind", "wrong"}),
        (-INF, -70000.0, 16.0, set()),
        (INF, -70000.0, 16.0, {"wrong_kind", "wrong"}),
        (INF, 1.0, 70000.0, {"vacuous"}),
        (-INF, 1.0, 70000.0, {"vacuous"}),
        (-INF, 30000.0, 70000.0, {"vacuous", "wrong_kind", "wrong"}),
        (LARGEST, 70000.0, 16.0, {"wrong_kind", "wrong"}),
        (LARGEST, 65530.0, 26.0, set()),
        (0.0, 70000.0, 16.0, {"wrong_kind", "wrong"}),
        (-LARGEST, -70000.0, 16.0, {"wrong_kind", "wrong"}),
        (NAN, 70000.0, 16.0, {"nonfinite", "wrong"}),
    ],
)
def test_overflow_of_the_storage_format(
    got: float, truth: float, allowed: float, expected: set[str]
) -> None:
    """Infinity is right, then due, from half an ulp beyond the largest value."""
    found = measured(got, truth, allowed, fmt=FP16)
    assert kinds(found) == expected


@given(st.floats(60000.0, 70000.0) | st.floats(-70000.0, -60000.0))
def test_correct_rounding_to_fp16_is_never_wrong(truth: float) -> None:
    """The nearest fp16 value, infinity included, passes under half an ulp."""
    got = round_array(FP16, np.array([truth]))
    assert "wrong" not in kinds(measured(got, truth, 16.0, fmt=FP16))


@pytest.mark.parametrize(
    ("radius", "expected"),
    [
        (0.0, set()),
        (0.5 * CERTIFIED_SHARE, set()),
        (0.5 * CERTIFIED_SHARE * 1.001, {"uncertified"}),
        (INF, {"uncertified"}),
    ],
)
def test_what_is_not_known_closely_is_uncertified(
    radius: float, expected: set[str]
) -> None:
    """A radius beyond its share of the budget leaves the element uncertified."""
    assert kinds(measured(1.25, 1.0, 0.5, radius=radius)) == expected


def test_radius_is_taken_off_the_error() -> None:
    """An error is what remains beyond the reference's own radius, never less than 0."""
    assert measured(1.5, 1.0, 100.0, radius=0.125).error[0] == 0.375
    assert measured(1.0625, 1.0, 100.0, radius=0.125).error[0] == 0.0


def test_both_words_of_the_truth_count() -> None:
    """The low word decides where the budget is smaller than fp64's own ulp."""
    got, lo = 1.0, 2.0**-60
    assert measured(got, 1.0, 2.0**-61, lo=lo).ratio[0] == 2.0
    assert measured(got, 1.0, 2.0**-60, lo=lo).ratio[0] == 1.0


def test_a_gross_error_is_wrong_though_uncertified() -> None:
    """What is far beyond budget and radius together is wrong for certain."""
    assert kinds(measured(100.0, 1.0, 0.5, radius=1.0)) == {"uncertified", "wrong"}
    assert kinds(measured(1.75, 1.0, 0.5, radius=1.0)) == {"uncertified"}


@pytest.mark.parametrize("got", [NAN, INF, 0.0])
def test_nothing_is_wrong_where_nothing_is_known(got: float) -> None:
    """An infinite radius makes neither NONFINITE nor FAIL: it is uncertified."""
    for truth in (NAN, INF, 1.0):
        found = kinds(measured(got, truth, 0.5, radius=INF))
        assert "uncertified" in found
        assert "wrong" not in found


@pytest.mark.parametrize("got", [0.0, 1.0, NAN, INF])
def test_a_budget_that_is_not_a_number_passes_nothing_for_certain(got: float) -> None:
    """Without a budget an element is at best uncertified, never judged as right."""
    assert kinds(measured(got, 1.0, NAN)) & {"uncertified", "wrong"}


def test_worst_is_the_index_of_the_largest_ratio() -> None:
    """The worst element by index; an empty tensor has none."""
    found = measured([[1.0, 1.25], [1.5, 1.0]], 1.0, 0.5)
    assert found.worst == (1, 0)
    assert measured(np.zeros((2, 0)), 0.0, 1.0).worst is None


def test_effective_bits() -> None:
    """An RMS error of 2**-10 of the truth is ten bits; degenerate cases have none."""
    truth = np.array([1.0, -1.0, 1.0, -1.0])
    reference = Reference(
        hi=truth,
        lo=np.zeros(4),
        radius=np.zeros(4),
        certified=np.ones(4, dtype=bool),
        rung="fp64",
    )
    assert effective_bits(measured(truth + 2.0**-10, truth, 1.0), reference) == 10.0
    assert effective_bits(measured(truth, truth, 1.0), reference) is None
    zero = Reference(
        hi=0 * truth,
        lo=reference.lo,
        radius=reference.radius,
        certified=reference.certified,
        rung="fp64",
    )
    assert effective_bits(measured(truth, 0 * truth, 1.0), zero) is None
