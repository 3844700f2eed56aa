"""Double-double numbers with an exponent, and the scan over them."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scancheck.ops.linear_scan import LINEAR_SCAN
from scancheck.oracles.double_double import certified_radius
from scancheck.oracles.double_double_scan import DoubleDoubleSystem
from scancheck.oracles.engine import solve
from scancheck.oracles.multiprecision import solve_multiprecision
from scancheck.oracles.wide_double import (
    WideDouble,
    WideSystem,
    solve_wide,
    to_double_double,
)

Quad = tuple[float, float, float, int]

CONTEXT = mpmath.MPContext()
CONTEXT.prec = 400
EXPONENTS = st.sampled_from([0, 1, -1, 199, -199, 699, 701, -1074, -3000]) | (
    st.integers(-5000, 5000)
)


@st.composite
def wides(draw: st.DrawFn) -> Quad:
    """Significands of 2**-199 .. 2**199, lo up to half an ulp, radii up to 2**-40."""
    hi = draw(st.floats(2.0**-199, 2.0**199) | st.just(1.0)) * draw(
        st.sampled_from([1.0, -1.0])
    )
    share = draw(st.sampled_from([0.0, 0.5, -0.5, 2.0**-600]) | st.floats(-0.5, 0.5))
    lo = share * float(np.spacing(abs(hi)))
    hi, lo = hi + lo, lo - ((hi + lo) - hi)
    share = draw(st.sampled_from([0.0, 0.0, 2.0**-600, 2.0**-100, 2.0**-40]))
    return hi, lo, abs(hi) * share, draw(EXPONENTS)


def as_number(*quads: Quad) -> WideDouble:
    """A wide array of these entries."""
    *words, exponent = zip(*quads, strict=True)
    return WideDouble(
        *(np.array(word, dtype=np.float64) for word in words),
        np.array(exponent, dtype=np.int64),
    )


def corners(quad: Quad) -> list[Fraction]:
    """The exact numbers at the ends and the centre of what a number stands for."""
    hi, lo, radius = (Fraction(part) for part in quad[:3])
    unit = Fraction(2) ** quad[3]
    return [(hi + lo - radius) * unit, (hi + lo) * unit, (hi + lo + radius) * unit]


def parts(number: WideDouble) -> tuple[Fraction, Fraction, float]:
    """Centre and radius of the only entry, and the radius as a share of the centre."""
    hi, lo, radius = (Fraction(float(part[0])) for part in number.components[:3])
    unit = Fraction(2) ** int(number.exponent[0])
    share = float(radius / abs(hi + lo)) if hi else float(radius > 0)
    # Rounded radii are made good for in the end, by more than this.
    return (hi + lo) * unit, radius * unit * (1 + Fraction(2) ** -40), share


@given(wides(), wides())
@settings(max_examples=300, deadline=None)
@example((1.0, 0.0, 0.0, 0), (1.0, 0.0, 0.0, -700))
@example((1.0, 0.0, 0.0, 0), (2.0**-199, 0.0, 0.0, -700))
@example((1.0, 0.0, 0.0, 0), (2.0**199, 2.0**100, 0.0, -701))
@example((1.0, 2.0**-54, 0.0, -3000), (-1.0, 2.0**-54, 0.0, -3000))
def test_sum_holds_the_exact_sum(x: Quad, y: Quad) -> None:
    """x + y holds every sum of numbers in the two radii, at any exponents."""
    centre, radius, _ = parts(as_number(x) + as_number(y))
    for exact in (a + b for a in corners(x) for b in corners(y)):
        assert abs(centre - exact) <= radius


@given(wides(), wides())
@settings(max_examples=300, deadline=None)
def test_product_is_as_close_at_any_exponents(x: Quad, y: Quad) -> None:
    """x y holds every product, and exact factors give 2**-102 however small it is."""
    product = as_number(x) * as_number(y)
    centre, radius, share = parts(product)
    for exact in (a * b for a in corners(x) for b in corners(y)):
        assert abs(centre - exact) <= radius
    if x[2] == y[2] == 0.0:
        assert share <= 2.0**-102


def test_stored_values_are_exact_over_the_whole_range() -> None:
    """Subnormals, the largest values and zeros come back with radius 0."""
    values = np.array([5e-324, -1.1e-310, 2.0**-1022, 1.7e308, 0.0, 1.5, -3e-200])
    back = to_double_double(WideSystem().constant(values))
    assert (back.hi == values).all()
    assert not back.lo.any() and not back.radius.any()


def test_what_is_not_finite_is_not_known() -> None:
    """NaN and infinity, stored or multiplied by zero, have an infinite radius."""
    system = WideSystem()
    unknown = system.constant(np.array([np.nan, np.inf, -np.inf]))
    for number in (unknown, unknown * system.constant(np.zeros(3))):
        assert np.isinf(certified_radius(to_double_double(number))).all()


@pytest.mark.parametrize("exponent", [1023, 1025, 3000, 2**40])
def test_what_is_beyond_fp64_is_infinite(exponent: int) -> None:
    """Values from 2**1025 on are told from values that are merely uncertain."""
    values = to_double_double(
        as_number((1.0, 0.0, 0.0, exponent), (-1.0, 0.0, 0.5, exponent))
    )
    beyond = exponent > 1023
    assert np.isinf(values.hi[0]) == beyond
    assert np.isinf(values.radius[0]) == beyond
    assert np.isfinite(values.hi[1])


@given(wides())
@settings(max_examples=300, deadline=None)
@example((1.0, 2.0**-54, 0.0, -1074))
@example((1.0, 0.0, 0.0, -1075))
@example((1.0, 2.0**-60, 0.0, -1000))
def test_words_in_fp64_hold_the_number(x: Quad) -> None:
    """In fp64's range the radius takes in what hi and lo leave."""
    back = to_double_double(as_number(x))
    radius = float(back.radius[0])
    if np.isfinite(radius):
        centre = Fraction(float(back.hi[0])) + Fraction(float(back.lo[0]))
        assert all(abs(centre - exact) <= Fraction(radius) for exact in corners(x))
    if x[2] == 0.0 and np.isfinite(radius):
        assert radius <= 2.0**-1074


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "exp": CONTEXT.exp,
    "softplus": lambda x: CONTEXT.log1p(CONTEXT.exp(x)),
    "sigmoid": lambda x: 1 / (1 + CONTEXT.exp(-x)),
}
NEAR_ZERO = [0.0, -0.0, 5e-324, 1e-300, 1.0, -1.0, 0.3]
FAR_OUT = [299.9, 300.0, 707.0, 708.5, 745.1, 746.5, 1e3, 12345.678, 5e5, 999_999.0]
ARGUMENTS = np.array([*NEAR_ZERO, *FAR_OUT, *(-x for x in FAR_OUT)])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_close_at_any_argument(name: str) -> None:
    """exp, softplus, sigmoid within their radii, of 2**-90 however small they are."""
    number = getattr(WideSystem().constant(ARGUMENTS), name)()
    for i, x in enumerate(ARGUMENTS.tolist()):
        if name == "softplus" and x < -5e5:
            continue  # log1p in 400 bits has nothing left
        exact = FUNCTIONS[name](CONTEXT.mpf(x))
        centre = CONTEXT.mpf(float(number.hi[i])) + CONTEXT.mpf(float(number.lo[i]))
        unit = CONTEXT.mpf(2) ** int(number.exponent[i])
        radius = CONTEXT.mpf(float(number.radius[i])) * unit
        assert abs(centre * unit - exact) <= radius * (1 + CONTEXT.mpf(2) ** -40)
        assert radius <= exact * CONTEXT.mpf(2) ** -90


def test_exp_far_out() -> None:
    """Below every argument of interest exp is a radius; above, nothing is known."""
    number = WideSystem().constant(np.array([-1e300, 1e7, 1e300])).exp()
    back = to_double_double(number)
    assert back.hi[0] == 0.0 and back.radius[0] == 2.0**-1074
    assert np.isinf(back.radius[1:]).all()


def test_rungs_agree(problem: Any, compare: Callable[..., int]) -> None:
    """Both ops, all gradients: within its radius of double-double and of mpmath."""
    wide = solve_wide(*problem.arguments)
    assert compare(solve(DoubleDoubleSystem(), *problem.arguments), wide) == 0
    last = solve_multiprecision(*problem.arguments)
    assert compare(wide, last) == 0
    assert compare(wide, last, shrink=1e-6) > 0


def test_nothing_is_lost_near_the_end_of_fp64(compare: Callable[..., int]) -> None:
    """Decays, drives and cotangents of 1e-310: known to the last unit, as in mpmath."""
    rng = np.random.default_rng(3)
    shape = (2, 12, 3)
    gate = rng.choice([-0.1, -3.0, -400.0, -720.0, -1200.0], shape)
    tensors = {
        "g": gate,
        "b": rng.normal(size=shape) * 10.0 ** rng.integers(-318, 3, shape),
        "initial_state": rng.normal(size=(2, 3)) * 1e-300,
    }
    bars = {"h": rng.normal(size=shape) * 10.0 ** rng.integers(-300, 300, shape)}
    arguments = (LINEAR_SCAN, tensors, {}, bars)
    wide = solve_wide(*arguments)
    assert compare(wide, solve_multiprecision(*arguments)) == 0
    for number in (*wide.outputs.values(), *wide.gradients.values()):
        radius = certified_radius(number)
        assert (radius <= np.maximum(np.abs(number.hi) * 2.0**-85, 2.0**-1074)).all()
