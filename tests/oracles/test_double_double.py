"""Double-double numbers and the compiled scan over them."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scancheck.oracles import double_double, engine
from scancheck.oracles.double_double import (
    DoubleDouble,
    certified_radius,
    exact_double_double,
)
from scancheck.oracles.double_double_scan import DoubleDoubleSystem
from scancheck.oracles.double_word import fma
from scancheck.oracles.engine import Solution, solve
from scancheck.oracles.jit import jit
from scancheck.oracles.systems import GenericSystem

FloatArray = NDArray[np.float64]
Triple = tuple[float, float, float]

CONTEXT = mpmath.MPContext()
CONTEXT.prec = 300


@st.composite
def double_doubles(draw: st.DrawFn) -> Triple:
    """hi over the whole range, lo from 0 to half an ulp, radius from 0 to 2**-40 hi."""
    hi = draw(st.floats(allow_nan=False, allow_infinity=False))
    share = draw(st.sampled_from([0.0, 0.5, -0.5]) | st.floats(-0.5, 0.5))
    lo = share * float(np.spacing(hi)) if abs(hi) < 1e308 else 0.0
    hi, lo = hi + lo, lo - ((hi + lo) - hi)
    share = draw(st.sampled_from([0.0, 0.0, 2.0**-100, 2.0**-60, 2.0**-40]))
    return hi, lo, abs(hi) * share


def as_number(*triples: Triple) -> DoubleDouble:
    """A double-double array of these entries."""
    columns = np.array(triples, dtype=np.float64).T
    return DoubleDouble(*(np.ascontiguousarray(column) for column in columns))


def corners(x: Triple) -> list[Fraction]:
    """The exact numbers at the ends and the centre of what a triple stands for."""
    hi, lo, radius = (Fraction(part) for part in x)
    return [hi + lo - radius, hi + lo, hi + lo + radius]


def misses(number: DoubleDouble, exact: list[Fraction]) -> bool:
    """Whether an exact number lies outside the certified radius of the only entry."""
    radius = float(certified_radius(number)[0])
    if np.isinf(radius):
        return False
    centre = Fraction(float(number.hi[0])) + Fraction(float(number.lo[0]))
    return any(abs(centre - x) > Fraction(radius) for x in exact)


@given(double_doubles(), double_doubles())
@settings(max_examples=200, deadline=None)
@example((1.0, 2.0**-54, 0.0), (-1.0, 2.0**-54, 0.0))
@example((1.0, -(2.0**-107), 0.0), (2.0**-53, 2.0**-107, 0.0))
@example((5e-324, 0.0, 0.0), (-5e-324, 0.0, 0.0))
def test_sum_holds_the_exact_sum(x: Triple, y: Triple) -> None:
    """x + y holds every sum of numbers in the two radii, over the whole range."""
    exact = [a + b for a in corners(x) for b in corners(y)]
    assert not misses(as_number(x) + as_number(y), exact)


@given(double_doubles(), double_doubles())
@settings(max_examples=200, deadline=None)
@example((1e-170, 1e-187, 0.0), (1e-140, 1e-157, 0.0))
@example((2.0**-537, 0.0, 0.0), (1.5 * 2.0**-538, 0.0, 0.0))
@example((1.0, 2.0**-1074, 0.0), (1.5, 2.0**-1074, 2.0**-1074))
def test_product_holds_the_exact_product(x: Triple, y: Triple) -> None:
    """x y holds every product of numbers in the two radii, underflow included."""
    exact = [a * b for a in corners(x) for b in corners(y)]
    assert not misses(as_number(x) * as_number(y), exact)


@given(st.integers(-(2**53), 2**53), st.integers(-(2**53), 2**53))
@settings(max_examples=200, deadline=None)
def test_single_words_are_exact(m: int, n: int) -> None:
    """Sums and products of two float64 are exact, with radius 0."""
    x, y = as_number((float(m), 0.0, 0.0)), as_number((float(n), 0.0, 0.0))
    for number, exact in ((x + y, m + n), (x * y, m * n)):
        assert number.radius[0] == 0.0
        assert not misses(number, [Fraction(exact)])


def test_zero_absorbs_uncertain_numbers() -> None:
    """0 times anything finite is 0 with radius 0, so that resets stay exact."""
    product = as_number((0.0, 0.0, 0.0)) * as_number((3.0, 1e-17, 1e-20))
    assert [part[0] for part in product.components] == [0.0, 0.0, 0.0]


@jit()
def _fused(a: float, b: float, c: float) -> float:
    return fma(a, b, c)


@given(st.floats(-1e100, 1e100), st.floats(-1e100, 1e100), st.floats(-1e100, 1e100))
@settings(max_examples=200, deadline=None)
@example(1.0 + 2.0**-52, 1.0 - 2.0**-53, -1.0)
def test_fma_rounds_once(a: float, b: float, c: float) -> None:
    """fma(a, b, c) is the float64 nearest to the exact a b + c."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    assert _fused(a, b, c) == float(exact)


def test_no_contraction() -> None:
    """a b + c written as two operations rounds twice: nothing is fused unasked."""

    @jit(cache=False)
    def twice(a: float, b: float, c: float) -> float:
        return a * b + c

    a, b = 1.0 + 2.0**-30, 1.0 - 2.0**-30
    assert twice(a, b, -1.0) == 0.0
    assert _fused(a, b, -1.0) == -(2.0**-60)


def _silu_slope(x: Any) -> Any:
    s = 1 / (1 + CONTEXT.exp(-x))
    return s * (1 + x * (1 - s))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "exp": CONTEXT.exp,
    "softplus": lambda x: CONTEXT.log1p(CONTEXT.exp(x)),
    "sigmoid": lambda x: 1 / (1 + CONTEXT.exp(-x)),
    "silu": lambda x: x / (1 + CONTEXT.exp(-x)),
    "silu_slope": _silu_slope,
    "one_minus": lambda x: 1 - x,
}


def arguments() -> FloatArray:
    """Arguments over the range of exp: small, near table entries, large, extreme."""
    rng = np.random.default_rng(3)
    steps = np.arange(-40, 41) * (np.log(2.0) / 8192)
    return np.concatenate(
        [
            np.linspace(-760.0, 712.0, 185),
            rng.uniform(-3, 3, 200),
            rng.uniform(-40, 40, 100),
            rng.choice([-1.0, 1.0], 100) * 10.0 ** rng.uniform(-320, 2, 100),
            np.nextafter(steps, 1.0),
            steps * 1001,
            np.log(2.0**-8) + np.array([-1e-15, 0.0, 1e-15]),
            [0.0, -0.0, 5e-324, -5e-324, -745.13, -745.14, 709.78, -800.0],
        ]
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_hold_the_exact_value(name: str) -> None:
    """Every function of a double-double argument holds mpmath's value at 300 bits."""
    hi = arguments()
    lo = np.spacing(hi) * np.linspace(-0.499, 0.499, hi.size)
    lo[::3] = 0.0
    number = getattr(DoubleDouble(hi, lo, np.zeros(hi.size)), name)()
    radius = certified_radius(number)
    largest = 0.0
    for i in range(hi.size):
        exact = FUNCTIONS[name](CONTEXT.mpf(hi[i]) + CONTEXT.mpf(lo[i]))
        error = abs(CONTEXT.mpf(number.hi[i]) + CONTEXT.mpf(number.lo[i]) - exact)
        assert np.isinf(radius[i]) or error <= radius[i], (name, hi[i], lo[i])
        if radius[i] > 2.0**-1060 and np.isfinite(radius[i]):
            largest = max(largest, float(error / radius[i]))
    # The radii are not so wide that the assertion above could not fail.
    assert largest > 2.0**-8


@pytest.mark.parametrize("name", ["exp", "softplus", "sigmoid", "silu", "silu_slope"])
@pytest.mark.parametrize("radius", [1e-30, 1e-12, 1e-3, 0.7])
def test_functions_carry_the_radius_of_their_argument(name: str, radius: float) -> None:
    """The values at both ends of the argument's radius lie within the result's."""
    hi = np.concatenate([np.linspace(-60.0, 60.0, 49), [-5.6, -1.2785, 1.2785]])
    argument = DoubleDouble(hi, np.zeros(hi.size), np.full(hi.size, radius))
    number = getattr(argument, name)()
    certain = certified_radius(number)
    for i in range(hi.size):
        centre = CONTEXT.mpf(number.hi[i]) + CONTEXT.mpf(number.lo[i])
        for end in (CONTEXT.mpf(hi[i]) - radius, CONTEXT.mpf(hi[i]) + radius):
            assert abs(FUNCTIONS[name](end) - centre) <= certain[i], (name, hi[i])


def test_precision_of_functions() -> None:
    """Relative radii: exp 2**-100, sigmoid 2**-98, softplus 2**-90 down to -650."""
    x = exact_double_double(np.linspace(-650.0, 700.0, 1351))
    for name, bits in (("exp", 100), ("sigmoid", 98), ("softplus", 90)):
        number = getattr(x, name)()
        assert (certified_radius(number) <= 2.0**-bits * number.hi).all(), name


@pytest.mark.parametrize("value", [np.nan, np.inf, 710.5, 1e300])
def test_overflow_and_nan_are_not_certified(value: float) -> None:
    """exp of NaN and beyond the range has an infinite radius."""
    assert np.isinf(certified_radius(exact_double_double(np.array([value])).exp())[0])


def test_exp_of_minus_infinity_is_zero() -> None:
    """exp(-inf) is 0 up to the smallest subnormal, as a closed gate needs it."""
    number = exact_double_double(np.array([-np.inf])).exp()
    assert number.hi[0] == 0.0
    assert certified_radius(number)[0] <= 2.0**-1073


@given(st.lists(double_doubles(), min_size=1, max_size=9))
@settings(max_examples=100, deadline=None)
def test_sum_over_an_axis_holds_the_exact_sum(entries: list[Triple]) -> None:
    """The pairwise sum of any number of entries holds their exact sum."""
    exact = [sum(corner) for corner in zip(*map(corners, entries), strict=True)]
    total = as_number(*entries).reshape(-1, 1).sum(0)
    assert not misses(total, exact)


def test_sum_over_no_terms_and_two_axes() -> None:
    """An empty axis sums to exactly 0, and a tuple of axes is summed out."""
    assert exact_double_double(np.zeros((0, 3))).sum(0).hi.tolist() == [0.0] * 3
    x = np.arange(24.0).reshape(2, 3, 4)
    assert (exact_double_double(x).sum((0, 2)).hi == x.sum((0, 2))).all()


class StepByStep(GenericSystem):
    """The definition of the scan, over the same numbers."""

    def constant(self, values: FloatArray) -> DoubleDouble:
        """Stored values."""
        return exact_double_double(values)


@pytest.mark.parametrize("tile", [3, 2**18])
def test_compiled_scan_is_the_generic_scan(
    problem: Any,
    compare: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    tile: int,
) -> None:
    """The compiled scan and adjoint agree with the definition, in tiles and whole."""
    whole = solve(StepByStep(), *problem.arguments)
    monkeypatch.setattr(engine, "TILE_ENTRIES", tile)
    tiled = solve(DoubleDoubleSystem(), *problem.arguments)
    assert compare(whole, tiled) == 0


@pytest.mark.parametrize("shape", [(1, 70, 130), (3, 1, 1), (2, 5, 0), (1, 0, 4)])
def test_compiled_scan_at_odd_sizes(
    shape: tuple[int, int, int], linear: Callable[..., Any], compare: Callable[..., int]
) -> None:
    """More lanes than a block, single lanes, no lanes and no steps are all right."""
    rng = np.random.default_rng(4)
    tensors = {"a": rng.uniform(-1, 1, shape), "b": rng.normal(size=shape)}
    bars = {"h": rng.normal(size=shape)}
    op = linear(0).op
    want = solve(StepByStep(), op, tensors, {}, bars)
    assert compare(want, solve(DoubleDoubleSystem(), op, tensors, {}, bars)) == 0


def test_dyadic_scan_has_radius_zero(linear: Callable[..., Any]) -> None:
    """Data whose states fit into 53 bits are scanned with radius exactly 0."""
    rng = np.random.default_rng(5)
    tensors = {
        "a": rng.choice([0.0, 0.5, 1.0, -1.0], (2, 30, 3)),
        "b": rng.integers(-8, 9, (2, 30, 3)).astype(np.float64),
    }
    bars = {"h": rng.integers(-8, 9, (2, 30, 3)).astype(np.float64)}
    solution: Solution = solve(DoubleDoubleSystem(), linear(0).op, tensors, {}, bars)
    for number in (*solution.outputs.values(), *solution.gradients.values()):
        assert (double_double.certified_radius(number) == 0.0).all()
