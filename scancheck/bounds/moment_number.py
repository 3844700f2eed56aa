"""Numbers that carry the second moment of a kernel's rounding errors through any op.

A `MomentNumber` has two components, the exact value and the sum of the squares of the
sizes that each rounding may have had by the time it reaches the value: u |result| for
one operation. Roundings count as independent and of mean zero; to first order the error
then has the second moment 0.18 times that sum (numerics 2.8). A result below the normal
range has an error of at most eta, uniformly: eta^2 / 3, or 2 eta^2 in the same measure.
"""

from typing import Self

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.held import holds
from scancheck.bounds.rules import Rules, Store
from scancheck.oracles.ball import exact_ball
from scancheck.oracles.numbers import ArrayNumber

FloatArray = NDArray[np.float64]


class MomentNumber(ArrayNumber):
    """Value and second moment of roundings, under one set of rules."""

    __slots__ = ("rules",)

    def __init__(self, rules: Rules, *components: FloatArray) -> None:
        super().__init__(*components)
        self.rules = rules

    def like(self, *components: FloatArray) -> Self:
        """The same rules with other components."""
        return type(self)(self.rules, *components)

    @property
    def value(self) -> FloatArray:
        """The exact value, to fp64."""
        return self.components[0]

    @property
    def moment(self) -> FloatArray:
        """Sum of squares of the sizes of roundings."""
        return self.components[1]

    def __add__(self, other: Self) -> Self:
        value = self.value + other.value
        own = (self.rules.u * value) ** 2 + 2 * self.rules.add_eta**2
        return self.like(value, self.moment + other.moment + own)

    def __mul__(self, other: Self) -> Self:
        value = self.value * other.value
        moment = (
            self.value**2 * other.moment
            + self.moment * (other.value**2 + other.moment)
            + (self.rules.u * value) ** 2
        )
        return self.like(value, moment + 2 * self.rules.eta**2)

    def __neg__(self) -> Self:
        return self.like(-self.value, self.moment)

    def one_minus(self) -> Self:
        """1 - x."""
        value = 1.0 - self.value
        own = (self.rules.u * value) ** 2 + 2 * self.rules.add_eta**2
        return self.like(value, self.moment + own)

    def exp(self) -> Self:
        """exp(x), its own error of the size e0 + e1 |x| of the contract."""
        value = np.exp(self.value)
        e0, e1 = self.rules.exp
        # exp(-inf) is exactly 0, whatever e1 |x| says.
        size = np.where(np.isfinite(self.value), np.abs(self.value), 0.0)
        return self._function(value, value, e0 + e1 * size)

    def softplus(self) -> Self:
        """log(1 + exp(x)); the slope is sigmoid(x)."""
        ball = exact_ball(self.value)
        e0, e1 = self.rules.softplus
        own = e0 + e1 * np.abs(self.value)
        return self._function(ball.softplus().value, ball.sigmoid().value, own)

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x)), by the models of exp and silu."""
        value = exact_ball(self.value).sigmoid().value
        return self._function(value, value * (1.0 - value), self._logistic_error())

    def silu(self) -> Self:
        """x sigmoid(x), by the contract's model of silu."""
        ball = exact_ball(self.value)
        e0, e1 = self.rules.silu
        own = e0 + e1 * np.abs(self.value)
        return self._function(ball.silu().value, ball.silu_slope().value, own)

    def silu_slope(self) -> Self:
        """s (1 + x (1 - s)) with s = sigmoid(x): terms of both factors beside it."""
        ball = exact_ball(self.value)
        value, s = ball.silu_slope().value, ball.sigmoid().value
        size = s * (1.0 + np.abs(self.value) * (1.0 - s))
        own = size * self._logistic_error()
        # |d^2 silu / dx^2| <= 1/2; 1 - s has the absolute error of s.
        inner = self._logistic_error() * s * s * np.abs(self.value)
        moment = 0.25 * self.moment + own**2 + inner**2 + 2 * self.rules.eta**2
        return self.like(value, moment)

    def reciprocal(self) -> Self:
        """1 / x, rounded once; the slope is -1 / x^2."""
        with np.errstate(divide="ignore"):
            value = 1.0 / self.value
        return self._function(value, value**2, np.full_like(value, self.rules.u))

    def maximum(self, other: Self) -> Self:
        """The larger one, as if it were clear which."""
        beyond = self.value > other.value
        pairs = zip(self.components, other.components, strict=True)
        return self.like(*(np.where(beyond, *pair) for pair in pairs))

    def exceeds(self, other: Self) -> Self:
        """1 where x > y, else 0."""
        beyond = (self.value > other.value).astype(float)
        return self.like(beyond, np.zeros_like(beyond))

    def held(self) -> Self:
        """The value as a kernel may be given it."""
        return self.like(*given_number(self.rules, self.value).components)

    def _function(self, value: FloatArray, slope: FloatArray, own: FloatArray) -> Self:
        moment = slope**2 * self.moment + (own * value) ** 2
        return self.like(value, moment + 2 * self.rules.eta**2)

    def _logistic_error(self) -> FloatArray:
        e0, e1 = self.rules.exp
        own: FloatArray = e0 + e1 * np.abs(self.value) + self.rules.silu[0]
        return own + 2 * self.rules.u

    def sum(self, axis: int | tuple[int, ...]) -> Self:
        """The sum over axes, its roundings those of adding up in order."""
        axes = (axis,) if isinstance(axis, int) else axis
        last = tuple(range(-len(axes), 0))
        values = np.moveaxis(self.value, axes, last)
        terms = int(np.prod(values.shape[-len(axes) :]))
        values = values.reshape(*values.shape[: -len(axes)], terms)
        partial = np.cumsum(values, -1)[..., 1:]
        own = self.rules.u**2 * np.sum(partial**2, -1)
        floor = 2 * self.rules.add_eta**2 * partial.shape[-1]
        return self.like(
            np.sum(self.value, axis), np.sum(self.moment, axis) + own + floor
        )

    def as_part(self) -> Self:
        """As it is before parts of a gradient are added up."""
        cast = self.rules.part_cast
        return self if cast is None else self.stored(cast)

    def as_operand(self) -> Self:
        """The same value in the format of the operands of matrix products."""
        cast = self.rules.operand_cast
        return self if cast is None else self.stored(cast)

    def stored(self, store: Store) -> Self:
        """The same value after one rounding into another format."""
        own = (store.u * self.value) ** 2 + 2 * store.eta**2
        return self.like(self.value, self.moment + own)


def given_number(rules: Rules, values: FloatArray) -> MomentNumber:
    """Stored inputs: exact where the compute format holds them, else rounded once."""
    own = (rules.u * values) ** 2 + 2 * rules.eta**2
    own = np.where(holds(rules.compute, values), 0.0, own)
    return MomentNumber(rules, values, own)
