"""Numbers that carry a bound on a kernel's rounding error through any op.

An `ErrorNumber` has four components:

    value      the exact value, to fp64
    magnitude  what roundings scale with: for a kernel of unknown order the sum of the
               magnitudes of all monomials, for a declared sequential order |value|
    error      bound on |computed - exact|, valid to all orders in u
    peak       the largest magnitude that any intermediate result may have reached

The rules are standard forward error analysis (Higham, "Accuracy and Stability of
Numerical Algorithms", 2002, sections 2.2 and 3.1), kept non-asymptotic: each product is
bounded by (m1 + e1)(m2 + e2)(1 + u) - m1 m2. Since additions and products of
magnitudes bound every association and order, one run covers every tree (numerics 2.2).

A kernel may also mix the terms of two sums that it adds, so a number knows of how many
terms it is a sum: n1 + n2 of them meet at most n1 + n2 - 1 additions each.
"""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.held import holds
from scancheck.bounds.rules import Rules, Store
from scancheck.oracles.ball import Ball
from scancheck.oracles.numbers import ArrayNumber
from scancheck.oracles.units import U64

FloatArray = NDArray[np.float64]


class ErrorNumber(ArrayNumber):
    """Value, magnitude, error and peak, under one set of rules."""

    __slots__ = ("rules", "terms")

    def __init__(self, rules: Rules, *components: FloatArray, terms: int = 1) -> None:
        super().__init__(*components)
        self.rules = rules
        self.terms = terms

    def like(self, *components: FloatArray) -> Self:
        """The same rules and number of terms with other components."""
        return type(self)(self.rules, *components, terms=self.terms)

    @property
    def value(self) -> FloatArray:
        """The exact value, to fp64."""
        return self.components[0]

    @property
    def magnitude(self) -> FloatArray:
        """What relative roundings scale with."""
        return self.components[1]

    @property
    def error(self) -> FloatArray:
        """Bound on |computed - exact|."""
        return self.components[2]

    @property
    def peak(self) -> FloatArray:
        """Bound on every intermediate magnitude."""
        return self.components[3]

    def _new(
        self,
        value: FloatArray,
        magnitude: FloatArray,
        error: FloatArray,
        *peaks: FloatArray,
        terms: int = 1,
    ) -> Self:
        """A result; its own size joins the peaks of its operands."""
        peak = magnitude + error
        for other in peaks:
            peak = np.maximum(peak, other)
        return type(self)(self.rules, value, magnitude, error, peak, terms=terms)

    def __add__(self, other: Self) -> Self:
        terms = self.terms + other.terms
        left, right = self.summed(other.terms - 1), other.summed(self.terms - 1)
        value = left.value + right.value
        m = left.magnitude + right.magnitude
        if not self.rules.trees and terms == 2:
            m = np.abs(value)
        e = left.error + right.error
        e = e + (self.rules.u * (m + e) + self.rules.add_eta)
        return self._new(value, m, e, left.peak, right.peak, terms=terms)

    def __mul__(self, other: Self) -> Self:
        return self.times(other)

    def times(self, other: Self) -> Self:
        """The product, formed here and now."""
        value = self.value * other.value
        m = self.magnitude * other.magnitude
        e = self.magnitude * other.error + self.error * (other.magnitude + other.error)
        e = e + (self.rules.u * (m + e) + self.rules.eta)
        terms = self.terms * other.terms
        return self._new(value, m, e, self.peak, other.peak, terms=terms)

    def __neg__(self) -> Self:
        return self.like(-self.value, self.magnitude, self.error, self.peak)

    def one_minus(self) -> Self:
        """1 - x."""
        value = 1.0 - self.value
        m = 1.0 + self.magnitude if self.rules.trees else np.abs(value)
        e = self.error + (self.rules.u * (m + self.error) + self.rules.add_eta)
        return self._new(value, m, e, self.peak)

    def exp(self) -> Self:
        """exp(x) with the kernel's own relative error e0 + e1 |x|; exp(-inf) is 0."""
        with np.errstate(over="ignore", invalid="ignore"):
            value = np.exp(self.value)
            own = _model(self.rules.exp, np.abs(self.value) + self.error)
            e = value * own + self.rules.eta
            if self.error.any():
                # fp64 may underflow where a large error lifts the computed argument.
                top = np.maximum(value, np.exp(self.value + self.error))
                e = value * np.expm1(self.error) + top * own + self.rules.eta
                e = np.where(value == 0.0, top * (1.0 + own) + self.rules.eta, e)
        e = np.where(self.value == -np.inf, 0.0, e)
        peak = np.where(self.value == -np.inf, 0.0, self.peak)
        return self._new(value, value, e, peak)

    def softplus(self) -> Self:
        """log(1 + exp(x)), whose slope is sigmoid(x) <= sigmoid(x + error)."""
        value = _exact(self.value).softplus().value
        slope = _exact(self.value + self.error).sigmoid().value
        own = _model(self.rules.softplus, np.abs(self.value) + self.error)
        e = slope * self.error
        e = e + (own * (value + e) + self.rules.eta)
        return self._new(value, value, e, self.peak)

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x)): exp's relative error, a sum and a division."""
        value = _exact(self.value).sigmoid().value
        own = self._logistic_error()
        e = value * (np.expm1(self.error) * (1.0 + own) + own)
        # Whatever exp gives, the quotient is at most one, twice rounded.
        e = np.minimum(e + self._vanished(1.0), 1.0 + 2 * self.rules.u)
        return self._new(value, value, e, self.peak)

    def silu(self) -> Self:
        """x sigmoid(x), by the kernel's model of silu."""
        ball = _exact(self.value)
        value = ball.silu().value
        m = self.magnitude * ball.sigmoid().value
        reach = np.abs(self.value) + self.error
        own = _model(self.rules.silu, reach)
        # |d silu / dx| <= 1.1, and below (|x| + e + 1) sigmoid(x + e).
        top = _exact(self.value + self.error).sigmoid().value
        e = np.minimum(1.1, (reach + 1.0) * top) * self.error
        e = e + own * (m + e)
        return self._new(value, m, e + self._vanished(reach), self.peak)

    def silu_slope(self) -> Self:
        """s (1 + x (1 - s)), s = sigmoid(x): two logistic errors and four roundings.

        1 - s is mostly formed by subtraction; the error of s is absolute there.
        """
        ball = _exact(self.value)
        value = ball.silu_slope().value
        s, x = ball.sigmoid().value, np.abs(self.value) + self.error
        other = (-ball).sigmoid().value
        own, u = self._logistic_error(), self.rules.u
        m = s * (1.0 + x * other)
        # Numerator: relative errors of s and of the sum; absolute ones of 1 - s.
        e = m * (own + 4 * u) + s * x * (own * s + 2 * u)
        # |d^2 silu / dx^2| <= 1/2.
        e = (e + 0.5 * self.error) * (1.0 + 4 * (own + u))
        return self._new(value, m, e + self._vanished(1.0 + x), self.peak)

    def reciprocal(self) -> Self:
        """1 / x, rounded once; where the computed x may be zero, anything.

        |1/x' - 1/x| = |x' - x| / (|x| |x'|), and |x'| >= |x| - error.
        """
        # `value` is off itself, by the same bound in fp64's unit.
        size = np.abs(self.value) - self.error * (U64 / self.rules.u)
        least = size - self.error
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value = 1.0 / self.value
            m = np.abs(value)
            e = np.where(least > 0.0, self.error / size / least, np.inf)
            e = e + (self.rules.u * (m + e) + self.rules.eta)
        return self._new(value, m, e, self.peak)

    def maximum(self, other: Self) -> Self:
        """The larger one; where either may be, the larger of magnitudes and errors."""
        beyond, meets = self._compared(other)
        value = np.maximum(self.value, other.value)
        m, e = (
            np.where(meets, np.maximum(x, y), np.where(beyond, x, y))
            for x, y in zip(self.components[1:3], other.components[1:3], strict=True)
        )
        terms = max(self.terms, other.terms)
        return self._new(value, m, e, self.peak, other.peak, terms=terms)

    def exceeds(self, other: Self) -> Self:
        """1 where x > y, else 0; a kernel may decide otherwise where errors meet."""
        beyond, meets = (x.astype(float) for x in self._compared(other))
        return self._new(beyond, np.maximum(beyond, meets), meets)

    def held(self) -> Self:
        """The value as a kernel may be given it."""
        return self.like(*exact_number(self.rules, self.value).components)

    def _compared(self, other: Self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Where x > y, and where the computed values may be in another order."""
        apart = self.value - other.value
        return apart > 0.0, ~(np.abs(apart) > self.error + other.error)

    def joined(self, other: Self, axis: int) -> Self:
        """The entries of another number behind its own, along an axis."""
        both = super().joined(other, axis)
        both.terms = max(self.terms, other.terms)
        return both

    def _logistic_error(self) -> FloatArray:
        """Relative error of 1 / (1 + exp(-x)): silu's e0 and exp's whole model.

        With exp off by E, 1 / (1 + exp(-x)) is off by at most E / (1 - E).
        """
        own = _model(self.rules.exp, np.abs(self.value) + self.error)
        own = np.where(own < 1.0, own / np.maximum(1.0 - own, 1e-9), np.inf)
        return own + self.rules.silu[0] + 2 * self.rules.u

    def _vanished(self, factor: Any) -> Any:
        """Absolute error of `factor` / (1 + exp(-x)) by underflow.

        Where exp overflows the quotient is 0, and it may be flushed before that.
        """
        lost: FloatArray = (self.rules.eta + self.rules.vanish) * factor
        return self.rules.eta + lost

    def sum(self, axis: int | tuple[int, ...]) -> Self:
        """The sum over axes in any order: at most n - 1 additions on a term's path."""
        axes = (axis,) if isinstance(axis, int) else axis
        terms = int(np.prod([self.shape[a] for a in axes]))
        value = np.sum(self.value, axis)
        m, e = np.sum(self.magnitude, axis), np.sum(self.error, axis)
        peak = np.max(self.peak, axis) if terms else np.zeros_like(value)
        total = self._new(value, m, e, peak).summed(terms - 1)
        total.terms = max(1, terms)
        return total

    def summed(self, count: int) -> Self:
        """The same value after up to `count` more additions on each term's path."""
        if count <= 0:
            return self
        growth = np.expm1(count * np.log1p(self.rules.sum_u))
        e = self.error + growth * (self.magnitude + self.error)
        e = e + (1.0 + growth) * count * self.rules.add_eta
        return self._new(self.value, self.magnitude, e, self.peak, terms=self.terms)

    def as_part(self) -> Self:
        """As it is before parts of a gradient are added up."""
        cast = self.rules.part_cast
        return self if cast is None else self.stored(cast)

    def as_operand(self) -> Self:
        """The same value in the format of the operands of matrix products."""
        cast = self.rules.operand_cast
        return self if cast is None else self.stored(cast)

    @property
    def size(self) -> FloatArray:
        """Bound on what is computed."""
        return self.magnitude + self.error

    def losing(self, count: Callable[[], FloatArray]) -> Self:
        """The same value, whose products may underflow in another order: eta each."""
        value, m, error, peak = self.components
        return self.like(value, m, error + self.rules.eta * count(), peak)

    def stored(self, store: Store) -> Self:
        """The same value after one rounding into another format."""
        top = np.abs(self.value) + self.error
        e = self.error + (store.u * top + store.eta)
        peak = np.where(top <= store.largest, self.peak, np.inf)
        return self._new(self.value, self.magnitude, e, peak)


def _exact(values: FloatArray) -> Ball:
    return Ball(values, np.zeros_like(values))


def _model(coefficients: tuple[float, float], size: FloatArray) -> FloatArray:
    """e0 + e1 |x| as an array."""
    e0, e1 = coefficients
    model: FloatArray = e0 + e1 * size
    return model


def exact_number(rules: Rules, values: FloatArray) -> ErrorNumber:
    """Stored inputs, magnitude |value|.

    Values that the compute format does not hold are rounded where they enter; values
    below its normal range may count as zero in a kernel that flushes.
    """
    size = np.abs(values)
    held = holds(rules.compute, values)
    error = np.zeros_like(size)
    if not held.all():
        error = np.where(held, 0.0, rules.u * size + rules.eta)
    below = size < rules.compute.smallest_normal
    if rules.flush and below.any():
        error = np.where(below, np.maximum(error, size), error)
    return ErrorNumber(rules, values, size, error, size + error)
