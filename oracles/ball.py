"""Balls in fp64: a value with a radius that is sure to hold the exact number.

Radii are first computed without directed rounding. Every term of a radius is
non-negative, so n operations leave a relative error below n 2**-53 in it;
`certified_radius` makes good for that once, at the end (numerics 2.12).
"""

from typing import Self

import numpy as np
from numpy.typing import NDArray

from scancheck.oracles.numbers import ArrayNumber
from scancheck.oracles.units import FLOOR, FUNCTION_ERROR, TINY, U64

FloatArray = NDArray[np.float64]

# Safety of radii against their own rounding, for up to 3e6 operations (numerics 2.12).
INFLATION = 1.0 + 1e-9


class Ball(ArrayNumber):
    """Values and radii, float64 arrays of one shape."""

    __slots__ = ()

    @property
    def value(self) -> FloatArray:
        """Centres."""
        return self.components[0]

    @property
    def radius(self) -> FloatArray:
        """Radii, before the inflation of `certified_radius`."""
        return self.components[1]

    def __add__(self, other: Self) -> Self:
        value = self.value + other.value
        # In place where it can be: the passes over memory are the cost.
        radius = U64 * np.abs(value)
        for term in (self, other):
            if not term.exact:
                radius += term.radius
        return self.like(value, radius)

    @property
    def exact(self) -> bool:
        """Whether the radius is one repeated zero, as `exact_ball` makes it."""
        radius = self.radius
        if radius.size == 0 or any(radius.strides):
            return False
        return bool(radius[(0,) * len(radius.shape)] == 0.0)

    def __mul__(self, other: Self) -> Self:
        value = self.value * other.value
        radius = U64 * np.abs(value)
        radius += FLOOR
        if not other.exact:
            radius += np.abs(self.value) * other.radius
        if not self.exact:
            reach = np.abs(other.value)
            radius += self.radius * (reach if other.exact else reach + other.radius)
        return self.like(value, radius)

    def __neg__(self) -> Self:
        return self.like(-self.value, self.radius)

    def one_minus(self) -> Self:
        """1 - x."""
        value = 1.0 - self.value
        return self.like(value, self.radius + U64 * np.abs(value))

    def exp(self) -> Self:
        """exp(x): the radius grows by expm1 of the argument's."""
        value = np.exp(self.value)
        radius = _expm1_above(self.radius)
        radius += FUNCTION_ERROR
        # Where exp underflows, TINY stands for what it has lost.
        radius *= value + TINY
        radius += FLOOR
        return self.like(value, radius)

    def softplus(self) -> Self:
        """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)).

        Its slope is sigmoid(x), which grows by a factor of exp(r) at most within r and
        is below 1 and softplus(x): so r grows to min(r, softplus(x) expm1(r)).
        """
        x = self.value
        value = np.log1p(np.exp(-np.abs(x)))
        value += np.maximum(x, 0.0)
        # exp, log1p (condition below 1) and one addition of non-negative terms.
        radius = (2 * FUNCTION_ERROR + 2 * U64) * value
        radius += FLOOR
        if not self.exact:
            spread = _expm1_above(self.radius) * (value + TINY)
            radius += np.minimum(self.radius, spread)
        return self.like(value, radius)

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x)); |d log sigmoid / dx| < 1."""
        value = _sigmoid(self.value)
        radius = 2 * (FUNCTION_ERROR + 3 * U64) * value
        radius += FLOOR
        if not self.exact:
            spread = _expm1_above(self.radius) * (value + TINY)
            radius += np.minimum(1.0, spread)
        return self.like(value, radius)

    def silu(self) -> Self:
        """x sigmoid(x)."""
        return self * self.sigmoid()

    def silu_slope(self) -> Self:
        """d silu / dx = s (1 + x (1 - s)) with s = sigmoid(x), 1 - s = sigmoid(-x)."""
        rise = self * (-self).sigmoid()
        one = self.like(np.ones_like(rise.value), np.zeros_like(rise.value))
        return self.sigmoid() * (one + rise)

    def reciprocal(self) -> Self:
        """1 / x, with no end where the ball holds zero.

        |1/x - 1/y| = |x - y| / (|x| |y|), and |y| >= |x| - r.
        """
        size = np.abs(self.value)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            value = 1.0 / self.value
            radius = U64 * np.abs(value) + FLOOR
            if not self.exact:
                # The radius is still to be inflated; a difference would magnify that.
                least = size - self.radius * INFLATION
                spread = self.radius / size / least
                radius = np.where(least > 0.0, radius + spread, np.inf)
        return self.like(value, radius)

    def maximum(self, other: Self) -> Self:
        """The larger one, and where the balls meet the larger radius of the two."""
        value, apart = np.maximum(self.value, other.value), self + -other
        clear = np.abs(apart.value) > apart.radius * INFLATION
        x, y = self.radius, other.radius
        one = np.where(apart.value > 0.0, x, y)
        return self.like(value, np.where(clear, one, np.maximum(x, y)))

    def exceeds(self, other: Self) -> Self:
        """1 where x > y, else 0, with a radius of 1 where the balls meet."""
        apart = self + -other
        meets = np.abs(apart.value) <= apart.radius * INFLATION
        return self.like((apart.value > 0.0).astype(float), meets.astype(float))

    def held(self) -> Self:
        """The centre, of radius zero."""
        return self.like(self.value, np.zeros_like(self.value))

    def sum(self, axis: int | tuple[int, ...]) -> Self:
        """The sum over axes; any order of n terms costs (n - 1) u sum |x| at most."""
        value = np.sum(self.value, axis)
        axes = (axis,) if isinstance(axis, int) else axis
        terms = int(np.prod([self.shape[a] for a in axes]))
        magnitude = np.sum(np.abs(self.value), axis)
        return self.like(
            value, np.sum(self.radius, axis) + terms * U64 * 1.0001 * magnitude
        )


def _expm1_above(radius: FloatArray) -> FloatArray:
    """A new array, nowhere below expm1(radius): r + r^2 holds up to r = 1.79."""
    if radius.size and float(np.max(radius)) < 1.0:
        above = radius * radius
        above += radius
    else:
        above = np.expm1(radius)
    above *= 1.0 + 4 * FUNCTION_ERROR
    return above


def _sigmoid(x: FloatArray) -> FloatArray:
    """The logistic function without overflow on either side."""
    below = np.exp(-np.abs(x))
    below += 1.0
    # The numerator is 1 or exp(-|x|): faster so than by a choice between the two.
    above: FloatArray = np.exp(np.minimum(x, 0.0))
    above /= below
    return above


def exact_ball(value: FloatArray) -> Ball:
    """Stored values, known exactly: one zero, repeated, is their radius."""
    zero = np.zeros_like(value, shape=1)[0]  # where the values are
    return Ball(value, np.broadcast_to(zero, value.shape))


def certified_radius(ball: Ball) -> FloatArray:
    """Rigorous radii; NaN and overflow become infinity, so nothing is certified."""
    radius = ball.radius * INFLATION
    bad = ~np.isfinite(ball.value) | np.isnan(radius)
    return np.where(bad, np.inf, radius)
