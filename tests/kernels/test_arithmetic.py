"""Model arithmetic against exact rational arithmetic, rounded once."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scancheck.formats import (
    BF16,
    FP16,
    FP32,
    FP64,
    FloatArray,
    Format,
    from_ordinal,
    ordinal,
    round_array,
    round_exact,
)
from scancheck.kernels.models.arithmetic import (
    HAS_EXTENDED_PRECISION,
    Arithmetic,
    Array,
)

SHORT = [FP16, BF16, FP32]
ALL = [*SHORT, FP64]
EVALUATED = ALL if HAS_EXTENDED_PRECISION else SHORT

seeds = st.integers(0, 2**32 - 1)


def name_of(fmt: Format) -> str:
    """What a parametrised test calls a format."""
    return fmt.name


def any_values(fmt: Format, seed: int, count: int) -> FloatArray:
    """Finite values of a format, uniform in their order, subnormals included."""
    top = int(ordinal(fmt, np.array(fmt.largest)))
    draws = np.random.default_rng(seed).integers(-top, top, count, endpoint=True)
    return from_ordinal(fmt, draws)


def values_near_one(fmt: Format, seed: int, count: int) -> FloatArray:
    """Values whose exponents lie within a quarter of the precision around 0."""
    rng = np.random.default_rng(seed)
    spread = fmt.precision // 4
    size = rng.uniform(1.0, 2.0, count) * 2.0 ** rng.integers(-spread, spread, count)
    return round_array(fmt, size * rng.choice([-1.0, 1.0], count))


def lifted(arithmetic: Arithmetic, *arrays: FloatArray) -> tuple[Array, ...]:
    """The arrays in the type that the arithmetic computes on."""
    return tuple(arithmetic.lift(x) for x in arrays)


def assert_rounded_once(fmt: Format, exact: list[Fraction], got: Array) -> None:
    """Every value is the one of `fmt` nearest to its exact result."""
    expected = [round_exact(fmt, x) for x in exact]
    assert np.array_equal(np.array(expected), got.astype(np.float64))


@pytest.mark.parametrize("fmt", ALL, ids=name_of)
@given(seed=seeds)
def test_operations_round_once(fmt: Format, seed: int) -> None:
    """Sums, differences and products are the exact ones rounded once, everywhere."""
    arithmetic = Arithmetic(fmt)
    for draw in (any_values, values_near_one):
        x, y = draw(fmt, seed, 20), draw(fmt, seed + 1, 20)
        pairs = [(Fraction(p), Fraction(q)) for p, q in zip(x, y, strict=True)]
        x, y = lifted(arithmetic, x, y)
        with np.errstate(all="ignore"):
            results = arithmetic.add(x, y), arithmetic.sub(x, y), arithmetic.mul(x, y)
        assert_rounded_once(fmt, [p + q for p, q in pairs], results[0])
        assert_rounded_once(fmt, [p - q for p, q in pairs], results[1])
        assert_rounded_once(fmt, [p * q for p, q in pairs], results[2])


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=name_of)
def test_operations_round_once_on_neighbours(fmt: Format) -> None:
    """All pairs of the values next to zero, the normal edge, one and the largest."""
    places = np.array([0.0, fmt.smallest_normal, 1.0, fmt.largest])
    near = (ordinal(fmt, places)[:, None] + np.arange(-20, 1)).ravel()
    values = from_ordinal(fmt, near)
    x, y = (grid.ravel() for grid in np.meshgrid(values, values))
    arithmetic = Arithmetic(fmt)
    pairs = [(Fraction(p), Fraction(q)) for p, q in zip(x, y, strict=True)]
    assert_rounded_once(fmt, [p + q for p, q in pairs], arithmetic.add(x, y))
    assert_rounded_once(fmt, [p * q for p, q in pairs], arithmetic.mul(x, y))


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=name_of)
@given(seed=seeds)
def test_wider_operands_round_once(fmt: Format, seed: int) -> None:
    """A fp32 operand enters exactly: its product and its sum are rounded once."""
    arithmetic = Arithmetic(fmt)
    x, y = values_near_one(fmt, seed, 20), values_near_one(FP32, seed + 1, 20)
    pairs = [(Fraction(p), Fraction(q)) for p, q in zip(x, y, strict=True)]
    assert_rounded_once(fmt, [p * q for p, q in pairs], arithmetic.mul(x, y))
    assert_rounded_once(fmt, [p + q for p, q in pairs], arithmetic.add_wider(x, y))


def test_wider_sum_sees_what_float64_loses() -> None:
    """Just above a midpoint of the format, by less than float64 keeps, rounds up."""
    x = np.array([BF16.smallest_subnormal])
    midpoint = np.array([1.0 + BF16.unit_roundoff])
    assert x[0] + midpoint[0] == midpoint[0]
    assert Arithmetic(BF16).add_wider(x, midpoint)[0] == 1.0 + 2.0**-7


@pytest.mark.parametrize("fmt", ALL, ids=name_of)
@given(seed=seeds)
def test_two_sum_is_exact(fmt: Format, seed: int) -> None:
    """A sum and its error add up to the exact sum, whatever the exponents."""
    arithmetic = Arithmetic(fmt)
    for draw in (any_values, values_near_one):
        x, y = draw(fmt, seed, 20) / 4, draw(fmt, seed + 1, 20) / 4
        x, y = lifted(arithmetic, round_array(fmt, x), round_array(fmt, y))
        total, rest = arithmetic.two_sum(x, y)
        for p, q, s, e in zip(x, y, total, rest, strict=True):
            assert Fraction(float(s)) + Fraction(float(e)) == Fraction(
                float(p)
            ) + Fraction(float(q))


@pytest.mark.parametrize("fmt", ALL, ids=name_of)
@given(seed=seeds)
def test_two_prod_is_exact(fmt: Format, seed: int) -> None:
    """A product and its error add up to the exact product where nothing underflows."""
    arithmetic = Arithmetic(fmt)
    # fp16 keeps the error of a product only above 2**-24.
    scale = 16.0 if fmt == FP16 else 1.0
    x, y = values_near_one(fmt, seed, 20), values_near_one(fmt, seed + 1, 20)
    x, y = lifted(arithmetic, x * scale, y * scale)
    product, rest = arithmetic.two_prod(x, y)
    for p, q, s, e in zip(x, y, product, rest, strict=True):
        assert Fraction(float(s)) + Fraction(float(e)) == Fraction(float(p)) * Fraction(
            float(q)
        )


def test_two_prod_of_huge_fp64_has_no_error() -> None:
    """Where the splitting overflows, the product stays and its error is zero."""
    with np.errstate(all="ignore"):
        product, rest = Arithmetic(FP64).two_prod(
            np.array([2.0**1000 * (1 + 2.0**-52)]), np.array([3.0])
        )
    assert product[0] == 2.0**1000 * (1 + 2.0**-52) * 3.0
    assert rest[0] == 0.0


@pytest.mark.parametrize("fmt", EVALUATED, ids=name_of)
@pytest.mark.parametrize("function", ["exp", "softplus", "sigmoid", "silu"])
@given(seed=seeds)
def test_functions_keep_their_error_model(
    fmt: Format, function: str, seed: int
) -> None:
    """A function value is off by at most the declared 1.01 unit roundoffs."""
    arithmetic = Arithmetic(fmt)
    rng = np.random.default_rng(seed)
    x = round_array(fmt, np.append(rng.uniform(-8.0, 8.0, 12), rng.normal(0, 0.01, 4)))
    values = getattr(arithmetic, function)(arithmetic.lift(x))
    for argument, got in zip(x, values, strict=True):
        with mpmath.workprec(200):
            truth = _truth(function, mpmath.mpf(float(argument)))
            error = abs(mpmath.mpf(float(got)) - truth)
            allowed = Arithmetic.FUNCTION_ERROR * fmt.unit_roundoff * abs(truth)
            assert error <= allowed + fmt.eta


def _truth(function: str, x: mpmath.mpf) -> mpmath.mpf:
    match function:
        case "exp":
            return mpmath.exp(x)
        case "softplus":
            return mpmath.log1p(mpmath.exp(x))
        case "sigmoid":
            return 1 / (1 + mpmath.exp(-x))
        case _:
            return x / (1 + mpmath.exp(-x))


@pytest.mark.parametrize("fmt", EVALUATED, ids=name_of)
@given(seed=seeds)
def test_silu_slope_error(fmt: Format, seed: int) -> None:
    """The slope of silu errs by 1.01 u, and by 0.01 u of its terms if they cancel."""
    arithmetic = Arithmetic(fmt)
    rng = np.random.default_rng(seed)
    x = round_array(fmt, np.append(rng.uniform(-8, 8, 8), rng.normal(-1.2785, 1e-4, 8)))
    values = arithmetic.silu_slope(arithmetic.lift(x))
    for argument, got in zip(x, values, strict=True):
        with mpmath.workprec(200):
            z = mpmath.mpf(float(argument))
            s = 1 / (1 + mpmath.exp(-z))
            truth, terms = s * (1 + z * (1 - s)), s * (1 + abs(z) * (1 - s))
            allowed = fmt.unit_roundoff * (abs(truth) * 1.01 + 0.01 * terms) + fmt.eta
            assert abs(mpmath.mpf(float(got)) - truth) <= allowed


@pytest.mark.parametrize("fmt", EVALUATED, ids=name_of)
@given(seed=seeds)
def test_exp_pair_is_nearly_exact(fmt: Format, seed: int) -> None:
    """The two words of exp miss it by at most 2**-7 unit roundoffs."""
    arithmetic = Arithmetic(fmt)
    x = round_array(fmt, np.random.default_rng(seed).uniform(-6.0, 6.0, 16))
    high, low = arithmetic.exp_pair(arithmetic.lift(x))
    assert np.array_equal(high, arithmetic.exp(arithmetic.lift(x)))
    for argument, h, r in zip(x, high, low, strict=True):
        with mpmath.workprec(200):
            truth = mpmath.exp(mpmath.mpf(float(argument)))
            error = abs(mpmath.mpf(float(h)) + mpmath.mpf(float(r)) - truth)
            assert error <= fmt.unit_roundoff * 2.0**-7 * truth + fmt.eta


def test_exp_pair_of_overflow() -> None:
    """An infinite exponential has a rest of zero, so that it stays infinite."""
    with np.errstate(all="ignore"):
        high, low = Arithmetic(FP32).exp_pair(np.array([100.0, -np.inf], np.float32))
    assert high.tolist() == [np.inf, 0.0]
    assert low.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("target", SHORT, ids=name_of)
@given(seed=seeds)
def test_cast_rounds_once(target: Format, seed: int) -> None:
    """A cast gives the nearest value of the other format."""
    arithmetic = Arithmetic(FP32)
    x = values_near_one(FP32, seed, 20)
    got = arithmetic.cast(target, arithmetic.lift(x))
    assert_rounded_once(target, [Fraction(v) for v in x], got)
