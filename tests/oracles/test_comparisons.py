"""The larger of two numbers, which one it is, and a number taken as given."""

from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scancheck.bounds.error_number import ErrorNumber, exact_number
from scancheck.bounds.moment_number import given_number
from scancheck.bounds.rules import rules_for
from scancheck.contract import Contract
from scancheck.oracles import ball, double_double, flint_ball, multiprecision
from scancheck.oracles.ball import Ball
from scancheck.oracles.double_double import DoubleDouble
from scancheck.oracles.multiprecision import MpNumber
from scancheck.oracles.wide_double import WideDouble, WideSystem, to_double_double

FloatArray = NDArray[np.float64]
Pair = tuple[float, float]  # a value and a radius

VALUES = st.floats(-1e100, 1e100) | st.sampled_from([0.0, 1.0, -1.0, 1.0 + 2.0**-52])
RADII = st.sampled_from([0.0, 0.0, 2.0**-60, 1e-9, 1.0, 1e90])


def a_ball(pair: Pair) -> Any:
    """In fp64."""
    return Ball(*(np.array([part]) for part in pair))


def a_double_double(pair: Pair) -> Any:
    """In double-double."""
    value, radius = (np.array([part]) for part in pair)
    return DoubleDouble(value, np.zeros(1), radius)


def a_wide(pair: Pair) -> Any:
    """With an exponent beside it."""
    system = WideSystem()
    value, unit = (system.constant(np.array([part])) for part in pair)
    if not pair[1]:
        return value
    _, low, _, exponent = unit.components
    radius = unit.components[0] * (1 + 2.0**-52)
    return value + WideDouble(np.zeros(1), low, radius, exponent)


def an_mp(pair: Pair) -> Any:
    """In 100 bits."""
    parts = (multiprecision.constant(np.array([part]), 100) for part in pair)
    value, radius = (part.components[0] for part in parts)
    return MpNumber(value, radius, 100)


def ends(number: Any) -> tuple[Fraction, Fraction]:
    """Centre and certified radius of the only entry."""
    if isinstance(number, Ball):
        return Fraction(number.value[0]), Fraction(ball.certified_radius(number)[0])
    if isinstance(number, MpNumber):
        number = multiprecision.to_double_double(number)
    elif isinstance(number, WideDouble):
        number = to_double_double(number)
    centre = Fraction(number.hi[0]) + Fraction(number.lo[0])
    return centre, Fraction(double_double.certified_radius(number)[0])


KINDS: dict[str, Callable[[Pair], Any]] = {
    "ball": a_ball,
    "double_double": a_double_double,
    "wide": a_wide,
    "mpmath": an_mp,
}
EVERY = pytest.mark.parametrize("kind", KINDS)


def corners(pair: Pair) -> list[Fraction]:
    """Both ends of what a number stands for, and its centre."""
    value, radius = (Fraction(part) for part in pair)
    return [value - radius, value, value + radius]


@EVERY
@given(x=st.tuples(VALUES, RADII), y=st.tuples(VALUES, RADII))
@settings(max_examples=200, deadline=None)
@example(x=(1.0, 0.0), y=(1.0 + 2.0**-52, 0.0))
@example(x=(1.0, 0.6), y=(2.0, 0.6))
@example(x=(1.0, 0.4), y=(2.0, 0.4))
def test_the_larger_one_and_which_it_is(kind: str, x: Pair, y: Pair) -> None:
    """Both hold what every choice of numbers in the two radii gives."""
    one, other = KINDS[kind](x), KINDS[kind](y)
    larger, reach = ends(one.maximum(other))
    mask, open_by = ends(one.exceeds(other))
    assert mask in (0, 1)
    for a, b in product(corners(x), corners(y)):
        assert abs(max(a, b) - larger) <= reach
        assert abs(int(a > b) - mask) <= open_by


@EVERY
@pytest.mark.parametrize("apart", [1e-3, -1e-3])
def test_what_is_clear_is_exact(kind: str, apart: float) -> None:
    """Numbers that lie apart are told apart, and the larger keeps its own radius."""
    one, other = KINDS[kind]((1.0 + apart, 2.0**-30)), KINDS[kind]((1.0, 2.0**-40))
    assert ends(one.exceeds(other)) == (int(apart > 0), 0)
    _, reach = ends(one.maximum(other))
    assert reach <= 2.0**-29
    if apart < 0 and kind in ("double_double", "wide"):
        assert reach <= 2.0**-39


@EVERY
def test_a_number_taken_as_given_is_known(kind: str) -> None:
    """Its radius is zero, and it lies where the number was."""
    for pair in ((3.5, 0.25), (-1e-300, 1e-310), (0.0, 1.0)):
        assert ends(KINDS[kind](pair).held()) == (Fraction(pair[0]), 0)


@pytest.mark.skipif(flint_ball.available() is not None, reason="needs python-flint")
def test_arb_compares_alike() -> None:
    """The larger of two Arb balls, and a mask of 0, 1 or both."""
    import flint

    x = flint_ball.FlintSystem().constant(np.array([1.0, 2.0, 1.0, 0.0]))
    y = flint_ball.FlintSystem().constant(np.array([2.0, 1.0, 1.0, 0.0]))
    x = x + x.like(np.array([flint.arb(0)] * 3 + [flint.arb(0, 1)], dtype=object))
    larger, mask = (z.components[0] for z in (x.maximum(y), x.exceeds(y)))
    assert [flint_ball.ends(z)[0] for z in larger[:3]] == [2, 2, 1]
    assert [flint_ball.ends(z)[0] for z in mask] == [0, 1, 0, Fraction(1, 2)]
    assert flint_ball.ends(x.held().components[0][3]) == (0, 0)


def test_error_numbers_leave_open_what_errors_could_turn() -> None:
    """A kernel off by its error may take the other branch, and has that one's error."""
    rules = rules_for(Contract(), "fp32")
    value, error = np.array([1.0, 1.0, 1.0]), np.array([0.0, 0.3, 0.3])
    x = ErrorNumber(rules, value, value, error, value + error)
    y = exact_number(rules, np.array([0.5, 0.5, 0.9]))
    assert x.exceeds(y).value.tolist() == [1.0, 1.0, 1.0]
    assert x.exceeds(y).error.tolist() == [0.0, 0.0, 1.0]
    assert y.exceeds(x).error.tolist() == [0.0, 0.0, 1.0]
    assert x.maximum(y).error.tolist() == [0.0, 0.3, 0.3]
    assert y.maximum(x).error.tolist() == [0.0, 0.3, 0.3]
    off = np.where(x.exceeds(y).error > 0, 0.7, 1.0)
    assert (np.abs(np.maximum(off, y.value) - 1.0) <= x.maximum(y).error).all()
    held = x.held()
    assert held.error.tolist() == [0.0] * 3
    # 0.9 is not a number of fp32: it is rounded where it enters.
    assert (exact_number(rules, np.array([0.9])).held().error > 0.0).all()


def test_moments_follow_the_larger_one() -> None:
    """The moment of a maximum is that of its branch; a mask has none."""
    rules = rules_for(Contract(), "fp32")
    x = given_number(rules, np.array([0.1, 0.1]))
    y = given_number(rules, np.array([0.5, 0.0]))
    assert x.maximum(y).moment.tolist() == [0.0, x.moment[1]]
    assert x.exceeds(y).components[0].tolist() == [0.0, 1.0]
    assert not x.exceeds(y).moment.any()
