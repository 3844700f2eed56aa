"""1 / x in every kind of number, against exact fractions."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scancheck.errors import OracleUncertain
from scancheck.oracles import ball, double_double, flint_ball, multiprecision
from scancheck.oracles.ball import Ball
from scancheck.oracles.double_double import DoubleDouble, exact_double_double
from scancheck.oracles.exact import ExactSystem
from scancheck.oracles.multiprecision import MpNumber
from scancheck.oracles.wide_double import WideSystem, to_double_double

FloatArray = NDArray[np.float64]

# Radii relative to the value: none, roundings of a few operations, and up to beyond it.
SHARES = st.sampled_from([0.0, 0.0, 2.0**-100, 2.0**-60, 1e-9, 0.3, 0.49]) | st.floats(
    0.0, 1.5
)
NUMBERS = st.floats(-1e308, 1e308).filter(bool)


def of_ball(x: float, radius: float) -> tuple[Fraction, float]:
    """Centre and certified radius of 1 / x in fp64."""
    made = Ball(np.array([x]), np.array([radius])).reciprocal()
    with np.errstate(invalid="ignore"):
        certain = float(ball.certified_radius(made)[0])
    return _fraction(made.value[0]), certain


def of_double_double(x: float, radius: float) -> tuple[Fraction, float]:
    """The same in double-double."""
    made = DoubleDouble(np.array([x]), np.zeros(1), np.array([radius])).reciprocal()
    centre = _fraction(made.hi[0]) + _fraction(made.lo[0])
    return centre, float(double_double.certified_radius(made)[0])


def of_wide(x: float, radius: float) -> tuple[Fraction, float]:
    """The same in wide numbers, brought back to fp64's range."""
    system = WideSystem()
    number, unit = (system.constant(np.array([part])) for part in (x, radius))
    if radius:
        # A radius of its own exponent, by a sum with a number of that radius.
        high, low, _, exponent = unit.components
        spread = unit.like(np.zeros(1), low, high * (1 + 2.0**-52), exponent)
        number = number + spread
    made = to_double_double(number.reciprocal())
    centre = _fraction(made.hi[0]) + _fraction(made.lo[0])
    return centre, float(double_double.certified_radius(made)[0])


def of_mpmath(x: float, radius: float) -> tuple[Fraction, float]:
    """The same in mpmath numbers of 120 bits."""
    parts = (multiprecision.constant(np.array([p]), 120) for p in (x, radius))
    value, spread = (part.components[0] for part in parts)
    made = multiprecision.to_double_double(MpNumber(value, spread, 120).reciprocal())
    centre = _fraction(made.hi[0]) + _fraction(made.lo[0])
    return centre, float(double_double.certified_radius(made)[0])


KINDS: dict[str, Callable[[float, float], tuple[Fraction, float]]] = {
    "ball": of_ball,
    "double_double": of_double_double,
    "wide": of_wide,
    "mpmath": of_mpmath,
}
# Of the value, for exact numbers: a few units of each kind.
CLOSE = {"ball": 2.0**-52, "double_double": 2.0**-99, "wide": 2.0**-99, "mpmath": 2e-32}


def _fraction(x: Any) -> Fraction:
    return Fraction(float(x)) if np.isfinite(x) else Fraction(0)


@pytest.mark.parametrize("kind", KINDS)
@given(x=NUMBERS, share=SHARES)
@settings(max_examples=300, deadline=None)
@example(x=1.0, share=0.0)
@example(x=-2.0, share=0.49999)
@example(x=5e-324, share=0.0)
@example(x=1.7e308, share=1e-9)
@example(x=-3e-310, share=0.4)
@example(x=1.0, share=1.0)
@example(x=1.0, share=1.0 - 2.0**-53)
def test_it_holds_every_quotient(kind: str, x: float, share: float) -> None:
    """1 / y lies within the radius for every y within that of x, or there is no end."""
    radius = abs(x) * share
    centre, certain = KINDS[kind](x, radius)
    if np.isinf(certain):
        return
    assert radius < abs(x)
    for end in (-1, 0, 1):
        exact = 1 / (Fraction(x) + end * Fraction(radius))
        assert abs(centre - exact) <= Fraction(certain)


@pytest.mark.parametrize("kind", KINDS)
@given(x=st.floats(1e-290, 1e290))
@settings(max_examples=100, deadline=None)
def test_it_is_as_close_as_its_kind(kind: str, x: float) -> None:
    """The radius of an exact number's quotient is a few units of the kind."""
    _, certain = KINDS[kind](x, 0.0)
    assert certain <= CLOSE[kind] / x


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("x", "radius"), [(0.0, 0.0), (0.0, 1.0), (1e-3, 1e-3)])
def test_it_has_no_end_where_zero_is_held(kind: str, x: float, radius: float) -> None:
    """A denominator that may be zero certifies nothing."""
    assert np.isinf(KINDS[kind](x, radius)[1])


@pytest.mark.parametrize("radius", [0.0, 1e-12, 0.2])
def test_a_radius_is_no_wider_than_it_must_be(radius: float) -> None:
    """The farther end of the quotients is within a few units of the radius."""
    for kind in ("ball", "double_double", "mpmath"):
        centre, certain = KINDS[kind](-1.5, radius)
        farthest = abs(1 / (Fraction(-1.5) + Fraction(radius)) - centre)
        assert certain <= float(farthest) * 2.0 + 2.0**-52


def test_exact_numbers_refuse() -> None:
    """No quotient is dyadic in general, so the exact rung says so."""
    with pytest.raises(OracleUncertain, match="quotient"):
        ExactSystem().constant(np.ones(1)).reciprocal()


@pytest.mark.skipif(flint_ball.available() is not None, reason="needs python-flint")
def test_arb_agrees() -> None:
    """Arb's quotient lies within the double-double one; of zero it is unknown."""
    values = np.array([3.0, -1e-300, 7e200])
    arb = flint_ball.FlintSystem().constant(values).reciprocal().components[0]
    ours = exact_double_double(values).reciprocal()
    radius = double_double.certified_radius(ours)
    for i, (middle, spread) in enumerate(map(flint_ball.ends, arb)):
        centre = Fraction(ours.hi[i]) + Fraction(ours.lo[i])
        assert abs(middle - centre) <= Fraction(radius[i]) + spread
    unknown = flint_ball.FlintSystem().constant(np.zeros(1)).reciprocal()
    assert not unknown.components[0][0].is_finite()
