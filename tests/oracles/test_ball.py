"""Balls: every operation's radius attacked over the whole range of fp64."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scancheck.ops.normal_form import Lowered
from scancheck.oracles import tile_ball
from scancheck.oracles.ball import Ball, certified_radius, exact_ball
from scancheck.oracles.fp64 import Fp64System
from scancheck.oracles.tile_ball import (
    DecayProduct,
    OuterProduct,
    TileBall,
    exact_tile_ball,
)

FloatArray = NDArray[np.float64]
Pair = tuple[float, float]

CONTEXT = mpmath.MPContext()
CONTEXT.prec = 300
KINDS = [Ball, TileBall]


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    """A value of any size and a radius of 0, a part of it, or of any size."""
    value = draw(st.floats(allow_nan=False, allow_infinity=False))
    share = draw(st.sampled_from([0.0, 0.0, 2.0**-60, 2.0**-20, 1.0]))
    other = draw(st.sampled_from([0.0, 5e-324, 1e-310, 1e-20]))
    return value, abs(value) * share + other


@pytest.fixture(autouse=True, scope="module")
def waiting() -> Iterator[None]:
    """Balls of tiles use their compiled loops for arrays of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_ball, "LARGE", 1)
        yield


def ball(kind: type[Ball], *entries: Pair) -> Ball:
    """A ball array of these entries."""
    value, radius = np.array(entries, dtype=np.float64).T
    return kind(value.copy(), radius.copy())


def stored_ball(kind: type[Ball], values: FloatArray) -> Ball:
    """Stored values."""
    return kind(*exact_ball(values).components)


def corners(x: Pair) -> list[Fraction]:
    """The exact numbers at the ends and the centre of what a pair stands for."""
    value, radius = Fraction(x[0]), Fraction(x[1])
    return [value - radius, value, value + radius]


def misses(number: Ball, exact: list[Fraction]) -> bool:
    """Whether an exact number lies outside the certified radius of the only entry."""
    with np.errstate(over="ignore"):
        radius = float(certified_radius(number).reshape(-1)[0])
    if np.isinf(radius):
        return False
    centre = Fraction(float(number.value.reshape(-1)[0]))
    return any(abs(centre - x) > Fraction(radius) for x in exact)


@pytest.mark.parametrize("kind", KINDS)
@given(x=pairs(), y=pairs())
@settings(max_examples=200, deadline=None)
@example(x=(1.0, 0.0), y=(2.0**-54, 0.0))
@example(x=(2.0**-1022, 0.0), y=(2.0**-1022 * (1 + 2.0**-52), 0.0))
def test_sum_holds_the_exact_sum(kind: type[Ball], x: Pair, y: Pair) -> None:
    """x + y holds every sum of numbers in the two radii, over the whole range."""
    with np.errstate(over="ignore"):
        total = ball(kind, x) + ball(kind, y)
    assert not misses(total, [a + b for a in corners(x) for b in corners(y)])


@pytest.mark.parametrize("kind", KINDS)
@given(x=pairs(), y=pairs())
@settings(max_examples=200, deadline=None)
@example(x=(1e-200, 1e-200), y=(3e-124, 1.4e-124))
@example(x=(1.1e-162, 0.0), y=(1.1e-162, 0.0))
@example(x=(2.0**-1074, 2.0**-1074), y=(0.5, 0.5))
@example(x=(2.0**-600, 2.0**-601), y=(0.49 * 2.0**-474, 0.49 * 2.0**-474))
def test_product_holds_the_exact_product(kind: type[Ball], x: Pair, y: Pair) -> None:
    """x y holds every product of numbers in the two radii, underflow included."""
    with np.errstate(over="ignore", invalid="ignore"):
        product = ball(kind, x) * ball(kind, y)
    assert not misses(product, [a * b for a in corners(x) for b in corners(y)])


@pytest.mark.parametrize("kind", KINDS)
@given(x=pairs(), y=pairs())
@settings(max_examples=200, deadline=None)
def test_exact_operands_are_known_as_exact(kind: type[Ball], x: Pair, y: Pair) -> None:
    """Sums and products with stored values hold the exact results too."""
    stored, other = stored_ball(kind, np.array([x[0]])), ball(kind, y)
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = [stored * other, other * stored, stored * stored]
        sums = [stored + other, other + stored, stored + stored]
    a = Fraction(x[0])
    for number, exact in (
        (numbers[0], [a * b for b in corners(y)]),
        (numbers[1], [a * b for b in corners(y)]),
        (numbers[2], [a * a]),
        (sums[0], [a + b for b in corners(y)]),
        (sums[1], [a + b for b in corners(y)]),
        (sums[2], [a + a]),
    ):
        assert not misses(number, exact)


@pytest.mark.parametrize("kind", KINDS)
@given(entries=st.lists(pairs(), min_size=1, max_size=12))
@settings(max_examples=150, deadline=None)
def test_sum_over_an_axis_holds_the_exact_sum(
    kind: type[Ball], entries: list[Pair]
) -> None:
    """The sum of any number of entries holds their exact sum."""
    exact = [sum(corner) for corner in zip(*map(corners, entries), strict=True)]
    with np.errstate(over="ignore", invalid="ignore"):
        total = ball(kind, *entries).reshape(-1, 1).sum(0)
    assert not misses(total, exact)


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
    """Arguments over the range of exp: small, ordinary, near its ends, extreme."""
    rng = np.random.default_rng(3)
    return np.concatenate(
        [
            np.linspace(-760.0, 712.0, 185),
            rng.uniform(-3, 3, 200),
            rng.uniform(-40, 40, 100),
            rng.uniform(-746, -700, 150),
            rng.choice([-1.0, 1.0], 100) * 10.0 ** rng.uniform(-320, 2, 100),
            np.log(2.0) * np.arange(-40, 41),
            [0.0, -0.0, 5e-324, -5e-324, -745.13, -745.14, -745.2, 709.78, -800.0],
        ]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_hold_the_exact_value(name: str, kind: type[Ball]) -> None:
    """Every function of a stored value holds mpmath's value at 300 bits."""
    x = arguments()
    with np.errstate(all="ignore"):
        number = getattr(stored_ball(kind, x), name)()
    radius = certified_radius(number)
    largest = 0.0
    for value, bound, argument in zip(number.value, radius, x, strict=True):
        if np.isinf(bound):
            assert argument > 700.0
            continue
        error = abs(CONTEXT.mpf(value) - FUNCTIONS[name](CONTEXT.mpf(argument)))
        assert error <= bound, (name, argument)
        if bound > 2.0**-1000:
            largest = max(largest, float(error / bound))
    # The radii are not so wide that the assertion above could not fail.
    assert largest > 2.0**-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("radius", [1e-300, 1e-16, 1e-3, 0.7, 1.7, 40.0])
def test_functions_carry_the_radius_of_their_argument(
    name: str, radius: float, kind: type[Ball]
) -> None:
    """The values at both ends of the argument's radius lie within the result's."""
    x = np.concatenate([arguments()[::3], [-5.6, -1.2785, 1.2785, -745.2]])
    with np.errstate(all="ignore"):
        number = getattr(kind(x, np.full(x.size, radius)), name)()
    certain = certified_radius(number)
    for value, bound, argument in zip(number.value, certain, x, strict=True):
        if np.isinf(bound):
            continue
        for end in (CONTEXT.mpf(argument) - radius, CONTEXT.mpf(argument) + radius):
            error = abs(FUNCTIONS[name](end) - CONTEXT.mpf(value))
            assert error <= bound, (name, argument)


@pytest.mark.parametrize("name", ["exp", "softplus", "sigmoid"])
def test_functions_are_close(name: str) -> None:
    """Of a stored value exp, softplus and sigmoid are known to 2**-48 of themselves."""
    number = getattr(exact_ball(np.linspace(-650.0, 700.0, 1351)), name)()
    assert (certified_radius(number) <= 2.0**-48 * number.value).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, 710.5, 1e300])
def test_overflow_and_nan_are_not_certified(value: float) -> None:
    """exp of NaN and beyond the range has an infinite radius."""
    with np.errstate(all="ignore"):
        assert np.isinf(certified_radius(exact_ball(np.array([value])).exp())[0])


def test_exp_of_minus_infinity_is_zero() -> None:
    """exp(-inf) is 0 up to a few subnormals, as a closed gate needs it."""
    number = exact_ball(np.array([-np.inf])).exp()
    assert number.value[0] == 0.0
    assert certified_radius(number)[0] <= 2.0**-1070


def factors(stored: bool) -> tuple[TileBall, TileBall]:
    """[G, T, 1, L] and [G, 1, K, L], the second one exact or not."""
    rng = np.random.default_rng(8)
    steps = -rng.exponential(size=(2, 9, 1, 37)) * 10.0 ** rng.integers(
        -3, 3, (2, 9, 1, 37)
    )
    keys = rng.uniform(0.5, 16.0, (2, 1, 3, 37))
    left = TileBall(steps, np.abs(steps) * 2.0**-52)
    if stored:
        return left, exact_tile_ball(keys)
    return left, TileBall(keys, keys * 2.0**-51)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("swapped", [True, False])
def test_waiting_products_are_products(stored: bool, swapped: bool) -> None:
    """A product that waits has, once used, the entries of any other."""
    left, right = factors(stored)
    number = right * left if swapped else left * right
    assert isinstance(number, OuterProduct)
    assert isinstance(number.exp(), OuterProduct)
    assert number.shape == (2, 9, 3, 37)
    plain = Ball(*left.components) * Ball(*right.components)
    for waiting, formed in ((number, plain), (number.exp(), plain.exp())):
        assert np.array_equal(waiting.value, formed.value)
        assert np.array_equal(waiting.radius, formed.radius)
        part = waiting[:, 2:4]
        assert not isinstance(part, OuterProduct)
        assert np.array_equal(part.value, formed.value[:, 2:4])


@pytest.mark.parametrize("stored", [True, False])
def test_decays_of_keys_and_values_wait_too(stored: bool) -> None:
    """A scan of the two factors has the states of a scan of all their products."""
    rng = np.random.default_rng(5)
    left, right = (
        exact_tile_ball(x) if stored else TileBall(x, 2.0**-50 * np.abs(x))
        for x in (rng.uniform(-1.0, 1.0, (2, 9, 3, 1)), rng.uniform(size=(2, 9, 1, 37)))
    )
    plain = Ball(*left.components) * Ball(*right.components)
    waiting = left * right
    assert isinstance(waiting, DecayProduct)
    v, k, r, state = (
        exact_tile_ball(rng.normal(size=shape))
        for shape in ((2, 9, 37), (2, 9, 3, 1), (2, 9, 3, 1), (2, 3, 37))
    )
    found = []
    for decay in (waiting, TileBall(*plain.components)):
        system = Fp64System()
        o, after, _ = system.forward(
            Lowered(w=decay, v=v, k=k, r=r), system.begin(state), 0, 9, False
        )
        found.append((o, system.end(after, 9)))
    assert not waiting.is_formed
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one.value, other.value)
        np.testing.assert_allclose(one.radius, other.radius, rtol=1e-14)
    assert np.array_equal(waiting.value, plain.value)
    assert np.array_equal(waiting.radius, plain.radius)


def test_small_products_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the threshold, and of other shapes, products are formed at once."""
    left, right = factors(True)
    assert not isinstance(left * left, OuterProduct)
    monkeypatch.setattr(tile_ball, "LARGE", 2**14)
    assert not isinstance(left * right, OuterProduct)


@pytest.mark.parametrize("axes", [(0, 2, 1), (1, 0, 2), (2, 1, 0)])
def test_transposing_moves_entries_only(axes: tuple[int, ...]) -> None:
    """Balls of tiles permute like arrays, and one repeated radius stays one."""
    value = np.arange(2.0 * 67 * 5).reshape(2, 67, 5)
    turned = TileBall(value, value * 2.0).transpose(*axes)
    assert np.array_equal(turned.value, value.transpose(*axes))
    assert np.array_equal(turned.radius, 2.0 * value.transpose(*axes))
    assert turned.value.flags.c_contiguous
    assert exact_tile_ball(value).transpose(*axes).exact
