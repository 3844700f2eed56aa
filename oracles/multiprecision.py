"""Rung R4: mpmath numbers of any precision with rigorous radii, the last resort.

A number is a pair of mpmath's raw floats: a value rounded to `bits` bits, and a radius
that is rounded away from zero. mpmath rounds sums, products and quotients correctly and
its exponents have no end; its functions are charged 2**4 units. Sums and products that
fit into the precision are exact and add nothing to the radius.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Self

import numpy as np
from mpmath import libmp
from numpy.typing import NDArray

from scancheck.formats import FP64, round_exact
from scancheck.ops.normal_form import Op
from scancheck.oracles.double_double import DoubleDouble
from scancheck.oracles.engine import Solution, solve
from scancheck.oracles.numbers import ArrayNumber
from scancheck.oracles.systems import GenericSystem

FloatArray = NDArray[np.float64]
Raw = Any  # an mpmath raw float: sign, mantissa, exponent, length of the mantissa
Pair = tuple[Raw, Raw]  # a value and a radius

ZERO, ONE, INFINITY = libmp.fzero, libmp.fone, libmp.finf
NOT_FINITE = (libmp.finf, libmp.fninf, libmp.fnan)
UP = (30, libmp.round_up)  # precision and rounding of radii
DOWN = (30, libmp.round_down)  # and of what they are divided by
# Numbers below this power of two are not written out as fractions.
NEGLIGIBLE_EXPONENT = -2400
KEPT_BITS = 512  # of a value, before it is split into two float64


class MpNumber(ArrayNumber):
    """Values and radii, object arrays of raw mpmath floats, and a precision in bits."""

    __slots__ = ("bits",)

    def __init__(self, value: NDArray[Any], radius: NDArray[Any], bits: int) -> None:
        super().__init__(value, radius)
        self.bits = bits

    def like(self, *components: NDArray[Any]) -> Self:
        """A number of the same precision."""
        value, radius = components
        return type(self)(value, radius, self.bits)

    def __add__(self, other: Self) -> Self:
        return self._elementwise(_add, other)

    def __mul__(self, other: Self) -> Self:
        return self._elementwise(_multiply, other)

    def __neg__(self) -> Self:
        return self._elementwise(_negate)

    def one_minus(self) -> Self:
        """1 - x."""
        return self._one() + -self

    def exp(self) -> Self:
        """exp(x)."""
        return self._elementwise(_exp)

    def softplus(self) -> Self:
        """log(1 + exp(x))."""
        return self._elementwise(_softplus)

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x))."""
        return self._elementwise(_sigmoid)

    def silu(self) -> Self:
        """x sigmoid(x)."""
        return self * self.sigmoid()

    def silu_slope(self) -> Self:
        """d silu / dx = s (1 + x (1 - s)) with s = sigmoid(x), 1 - s = sigmoid(-x)."""
        return self.sigmoid() * (self._one() + self * (-self).sigmoid())

    def reciprocal(self) -> Self:
        """1 / x, with no end where zero is within the radius."""
        return self._elementwise(_reciprocal)

    def maximum(self, other: Self) -> Self:
        """The larger one; it moves by no more than either does."""
        return self._elementwise(_maximum, other)

    def exceeds(self, other: Self) -> Self:
        """1 where x > y, else 0, with a radius of 1 where that is open."""
        return self._elementwise(_exceeds, other)

    def held(self) -> Self:
        """The value, of radius zero."""
        return self.like(self.components[0], self._one().components[1])

    def sum(self, axis: int | tuple[int, ...]) -> Self:
        """The sum over axes, one term after the other."""
        axes = (axis,) if isinstance(axis, int) else axis
        total = self
        for one in sorted((a % len(self.shape) for a in axes), reverse=True):
            terms = total
            shape = total.shape[:one] + total.shape[one + 1 :]
            total = self._constant(np.zeros(shape))
            for i in range(terms.shape[one]):
                total = total + terms[(*(slice(None),) * one, i)]
        return total

    def _one(self) -> Self:
        return self._constant(np.ones(self.shape))

    def _constant(self, values: FloatArray) -> Self:
        return self.like(*constant(values, self.bits).components)

    def _elementwise(self, function: Any, *others: Self) -> Self:
        """`function(bits, value, radius, ...)` at every entry, broadcast."""
        parts = [part for number in (self, *others) for part in number.components]
        applied = np.frompyfunc(
            lambda *scalars: function(self.bits, *scalars), len(parts), 2
        )(*parts)
        return self.like(*(boxed(part) for part in applied))


def boxed(values: Any) -> NDArray[Any]:
    """An object array also where NumPy gives the only entry of one."""
    if isinstance(values, np.ndarray):
        return values
    box = np.empty((), dtype=object)
    box[()] = values
    return box


def constant(values: FloatArray, bits: int) -> MpNumber:
    """Stored values, known exactly; 53 bits or more."""
    with np.errstate(invalid="ignore"):  # NaN is kept
        raw = boxed(np.frompyfunc(lambda x: libmp.from_float(float(x)), 1, 1)(values))
    radius = np.empty(raw.shape, dtype=object)
    radius.fill(ZERO)
    return MpNumber(raw, radius, bits)


def _add(bits: int, x: Raw, xr: Raw, y: Raw, yr: Raw) -> Pair:
    """x + y, exact where the bits from the first to the last fit."""
    radius = _sum(xr, yr)
    (_, xm, xe, xb), (_, ym, ye, yb) = x, y
    if xm and ym and max(xe + xb, ye + yb) + 1 - min(xe, ye) > bits:
        z = libmp.mpf_add(x, y, bits, libmp.round_nearest)
        return z, _sum(radius, _units(bits, z, 0))
    return libmp.mpf_add(x, y), radius


def _multiply(bits: int, x: Raw, xr: Raw, y: Raw, yr: Raw) -> Pair:
    """x y; the radius is |x| yr + xr (|y| + yr) and the rounding."""
    radius = ZERO
    if xr != ZERO or yr != ZERO:
        wide = libmp.mpf_add(libmp.mpf_abs(y), yr, *UP)
        radius = _sum(
            libmp.mpf_mul(libmp.mpf_abs(x), yr, *UP), libmp.mpf_mul(xr, wide, *UP)
        )
    if x[3] + y[3] > bits:
        z = libmp.mpf_mul(x, y, bits, libmp.round_nearest)
        return z, _sum(radius, _units(bits, z, 0))
    return libmp.mpf_mul(x, y), radius


def _negate(bits: int, x: Raw, xr: Raw) -> Pair:
    """-x."""
    return libmp.mpf_neg(x), xr


def _reciprocal(bits: int, x: Raw, xr: Raw) -> Pair:
    """1 / x; the radius is xr / (|x| (|x| - xr)) and the rounding."""
    size = libmp.mpf_abs(x)
    if x in NOT_FINITE or not libmp.mpf_lt(xr, size):
        return ZERO, INFINITY
    z = libmp.mpf_div(ONE, x, bits, libmp.round_nearest)
    own = _units(bits, z, 0)
    if xr == ZERO:
        return z, own
    least = libmp.mpf_mul(size, libmp.mpf_sub(size, xr, *DOWN), *DOWN)
    return z, _sum(libmp.mpf_div(xr, least, *UP), own)


def _maximum(bits: int, x: Raw, xr: Raw, y: Raw, yr: Raw) -> Pair:
    """The larger value and the larger radius."""
    return x if libmp.mpf_gt(x, y) else y, xr if libmp.mpf_gt(xr, yr) else yr


def _exceeds(bits: int, x: Raw, xr: Raw, y: Raw, yr: Raw) -> Pair:
    """1 for x > y, else 0; a radius of 1 unless |x - y| > xr + yr."""
    apart = libmp.mpf_abs(libmp.mpf_sub(x, y))
    clear = libmp.mpf_gt(apart, _sum(xr, yr))
    return ONE if libmp.mpf_gt(x, y) else ZERO, ZERO if clear else ONE


def _exp(bits: int, x: Raw, xr: Raw) -> Pair:
    """exp(x); exp(0) = 1 is exact."""
    z = libmp.mpf_exp(x, bits, libmp.round_nearest)
    if x == ZERO and xr == ZERO:
        return z, ZERO
    return z, _relative(bits, z, xr)


def _softplus(bits: int, x: Raw, xr: Raw) -> Pair:
    """max(x, 0) + log1p(t) with t = exp(-|x|); the slope is below 1 and exp(x + xr).

    Where t is below 2**-bits, log1p(t) is t within the units charged.
    """
    nearest = (bits, libmp.round_nearest)
    tail = libmp.mpf_exp(libmp.mpf_neg(libmp.mpf_abs(x)), *nearest)
    if tail[2] + tail[3] >= -bits:
        tail = libmp.mpf_log(libmp.mpf_add(ONE, tail), *nearest)
    z = tail if x[0] else libmp.mpf_add(x, tail, *nearest)
    slope = ONE
    if libmp.mpf_lt(libmp.mpf_add(x, xr), ZERO):
        slope = libmp.mpf_exp(libmp.mpf_add(x, xr), *UP)
    spread = libmp.mpf_shift(libmp.mpf_mul(slope, xr, *UP), 1)
    return z, _sum(spread, _units(bits, z, 4))


def _sigmoid(bits: int, x: Raw, xr: Raw) -> Pair:
    """1 / (1 + t) for x >= 0, else t / (1 + t), with t = exp(-|x|)."""
    nearest = (bits, libmp.round_nearest)
    shrunk = libmp.mpf_exp(libmp.mpf_neg(libmp.mpf_abs(x)), *nearest)
    below = libmp.mpf_add(ONE, shrunk, *nearest)
    z = libmp.mpf_div(shrunk if x[0] else ONE, below, *nearest)
    return z, _relative(bits, z, xr)


def _relative(bits: int, z: Raw, xr: Raw) -> Raw:
    """|z| (r + r**2), above |z| expm1(r) for r < 1, and the units of a function."""
    own = _units(bits, z, 4)
    if xr == ZERO:
        return own
    if not libmp.mpf_lt(xr, ONE):
        return INFINITY
    spread = libmp.mpf_mul(xr, libmp.mpf_add(ONE, xr, *UP), *UP)
    return _sum(libmp.mpf_mul(libmp.mpf_abs(z), spread, *UP), own)


def _units(bits: int, z: Raw, exponent: int) -> Raw:
    """2**exponent units of z, a unit being 2**-bits |z|."""
    return libmp.mpf_shift(libmp.mpf_pos(libmp.mpf_abs(z), *UP), exponent - bits)


def _sum(x: Raw, y: Raw) -> Raw:
    """The sum of two radii."""
    if x == ZERO:
        return y
    return libmp.mpf_add(x, y, *UP)


class MultiprecisionSystem(GenericSystem):
    """The recurrence step by step in mpmath numbers of `bits` bits."""

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def constant(self, values: FloatArray) -> MpNumber:
        """Stored values as numbers of radius zero."""
        return constant(values, self.bits)


def solve_multiprecision(
    op: Op,
    tensors: Mapping[str, FloatArray],
    switches: Mapping[str, bool],
    cotangents: Mapping[str, FloatArray] | None = None,
    bits: int = 512,
) -> Solution:
    """Outputs and gradients as double-doubles, computed in `bits` bits."""
    system = MultiprecisionSystem(bits)
    solution = solve(system, op, tensors, switches, cotangents)
    return Solution(
        outputs={n: to_double_double(x) for n, x in solution.outputs.items()},
        gradients={n: to_double_double(x) for n, x in solution.gradients.items()},
    )


def to_double_double(number: MpNumber) -> DoubleDouble:
    """hi + lo of the values; the radii take in what that leaves of them."""
    words = np.frompyfunc(_words, 2, 3)(*number.components)
    return DoubleDouble(*(np.asarray(part, dtype=np.float64) for part in words))


def _words(value: Raw, radius: Raw) -> tuple[float, float, float]:
    """hi, lo and the radius around their sum; an infinite radius beyond 2**1023."""
    for raw in (value, radius):
        if raw in NOT_FINITE or raw[2] + raw[3] > 1023:
            return float("nan"), 0.0, float("inf")
    (exact, dropped), (rest, slack) = _fraction(value), _fraction(radius)
    hi = round_exact(FP64, exact)
    lo = round_exact(FP64, exact - Fraction(hi))
    left = abs(exact - Fraction(hi) - Fraction(lo))
    return hi, lo, _rounded_up(left + dropped + rest + slack)


def _fraction(raw: Raw) -> tuple[Fraction, Fraction]:
    """The exact value of the leading KEPT_BITS, and a bound of what they leave."""
    sign, mantissa, exponent, length = raw
    if mantissa and exponent + length < NEGLIGIBLE_EXPONENT:
        return Fraction(0), Fraction(2) ** NEGLIGIBLE_EXPONENT
    left = Fraction(0)
    if length > KEPT_BITS:
        dropped = length - KEPT_BITS
        mantissa, exponent = mantissa >> dropped, exponent + dropped
        left = Fraction(2) ** exponent
    exact = Fraction(int(mantissa)) * Fraction(2) ** exponent
    return -exact if sign else exact, left


def _rounded_up(exact: Fraction) -> float:
    """A float64 that is not below an exact non-negative number."""
    nearest = round_exact(FP64, exact)
    if nearest == float("inf") or Fraction(nearest) >= exact:
        return nearest
    return float(np.nextafter(nearest, np.inf))


__all__ = ["MpNumber", "MultiprecisionSystem", "solve_multiprecision"]
