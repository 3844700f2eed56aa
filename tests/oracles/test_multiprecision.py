"""mpmath numbers with radii, against more bits, exact fractions and Arb."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mpmath import libmp
from numpy.typing import NDArray

from scancheck.oracles.engine import Solution
from scancheck.oracles.multiprecision import (
    MpNumber,
    constant,
    solve_multiprecision,
    to_double_double,
)

FloatArray = NDArray[np.float64]

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def fraction(raw: Any) -> Fraction:
    """The exact value of a raw mpmath float."""
    sign, mantissa, exponent, _ = raw
    return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** exponent


def number(value: float, radius: float, bits: int) -> MpNumber:
    """One mpmath number."""
    centre = constant(np.array([value]), bits).components[0]
    return MpNumber(centre, constant(np.array([radius]), bits).components[0], bits)


@given(FINITE, FINITE, st.sampled_from([0.0, 2.0**-60, 3.0]), st.integers(53, 90))
@settings(max_examples=150, deadline=None)
@example(1.0, 2.0**-60, 0.0, 53)
@example(1.0 + 2.0**-52, 1.0 - 2.0**-53, 0.0, 60)
def test_arithmetic_holds_the_exact_results(
    x: float, y: float, radius: float, bits: int
) -> None:
    """Sums and products at few bits hold the exact ones at all ends of the radii."""
    left, right = number(x, radius, bits), number(y, radius / 2, bits)
    for result, combine in (
        (left + right, lambda a, b: a + b),
        (left * right, lambda a, b: a * b),
    ):
        centre, reach = (fraction(part[0]) for part in result.components)
        for a in (-1, 0, 1):
            for b in (-1, 0, 1):
                ends = (
                    Fraction(x) + a * Fraction(radius),
                    Fraction(y) + b * Fraction(radius) / 2,
                )
                assert abs(combine(*ends) - centre) <= reach


@given(FINITE, FINITE)
@settings(max_examples=100, deadline=None)
def test_what_fits_is_exact(x: float, y: float) -> None:
    """Sums and products that fit into the bits have radius 0."""
    total = number(x, 0.0, 2200) + number(y, 0.0, 2200)
    product = number(x, 0.0, 106) * number(y, 0.0, 106)
    for result in (total, product):
        assert result.components[1][0] == libmp.fzero


@pytest.mark.parametrize("name", ["exp", "softplus", "sigmoid", "silu", "silu_slope"])
@pytest.mark.parametrize("radius", [0.0, 1e-9, 0.5])
def test_functions_hold_the_values_at_more_bits(name: str, radius: float) -> None:
    """Functions at 80 bits hold their values at 400 bits, at both ends of a radius."""
    context = mpmath.MPContext()
    context.prec = 400
    x = np.array([-900.0, -60.5, -1.3, -1e-20, 0.0, 1e-20, 0.7, 33.3, 800.0])
    result = getattr(
        MpNumber(
            constant(x, 80).components[0],
            constant(np.full(x.shape, radius), 80).components[0],
            80,
        ),
        name,
    )()

    def sigmoid(v: Any) -> Any:
        return 1 / (1 + context.exp(-v))

    exact: dict[str, Callable[[Any], Any]] = {
        "exp": context.exp,
        "softplus": lambda v: context.log1p(context.exp(v)),
        "sigmoid": sigmoid,
        "silu": lambda v: v * sigmoid(v),
        "silu_slope": lambda v: sigmoid(v) * (1 + v * sigmoid(-v)),
    }
    for i, start in enumerate(x):
        centre, reach = (context.make_mpf(part[i]) for part in result.components)
        for end in (context.mpf(start) - radius, context.mpf(start) + radius):
            assert abs(exact[name](end) - centre) <= reach, (name, start)


@given(FINITE, st.floats(-1, 1), st.floats(0, 1e3))
@settings(max_examples=100, deadline=None)
@example(1.5 * 2.0**-1074, 0.0, 0.0)
@example(3 * 2.0**-1074, 2.0**-1, 5e-324)
def test_conversion_keeps_the_radius(x: float, share: float, radius: float) -> None:
    """hi + lo and its radius hold the mpmath number and its radius, subnormals too."""
    wide = number(x, 0.0, 400) * number(1.0 + share * 2.0**-30, 0.0, 400)
    wide = wide + number(x * 2.0**-200, radius, 400)
    words = to_double_double(wide)
    value, reach = (fraction(part[0]) for part in wide.components)
    if np.isfinite(words.radius[0]):
        centre = Fraction(float(words.hi[0])) + Fraction(float(words.lo[0]))
        assert abs(value - centre) + reach <= Fraction(float(words.radius[0]))
        assert words.hi[0] == float(value)


def test_beyond_float64_nothing_is_known() -> None:
    """Overflow and NaN have an infinite radius; vanishing values one of an ulp."""
    x = constant(np.array([1e300, np.nan, np.inf, 1e-300]), 128)
    words = to_double_double(x * x)
    assert np.isinf(words.radius[:3]).all()
    assert words.hi[3] == 0.0 and 0.0 < words.radius[3] <= 5e-324


def test_few_bits_agree_with_many(problem: Any, compare: Callable[..., int]) -> None:
    """Solutions in 70 bits and in 300 bits lie within their radii of each other."""
    few = solve_multiprecision(*problem.arguments, bits=70)
    many = solve_multiprecision(*problem.arguments, bits=300)
    assert compare(few, many) == 0


def test_understated_radii_are_seen(problem: Any, compare: Callable[..., int]) -> None:
    """The comparison of two precisions fails when the radii are cut to a millionth."""
    few = solve_multiprecision(*problem.arguments, bits=60)
    many = solve_multiprecision(*problem.arguments, bits=300)
    assert compare(few, many, shrink=1e-6) > 0


def test_precision_is_not_global(problem: Any) -> None:
    """Solving leaves mpmath's global precision alone, and does not depend on it."""
    before = mpmath.mp.prec
    first: Solution = solve_multiprecision(*problem.arguments, bits=128)
    with mpmath.workprec(10):
        second = solve_multiprecision(*problem.arguments, bits=128)
    assert mpmath.mp.prec == before
    for name, value in first.outputs.items():
        assert (value.hi == second.outputs[name].hi).all()
        assert (value.lo == second.outputs[name].lo).all()
