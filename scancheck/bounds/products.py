"""Matrix products whose order and casts are not known: magnitudes and their errors.

A matrix is bounded entry by entry by the pair (size, error): size is at least its exact
magnitude, error at least |computed - exact|. Where sizes are sums of magnitudes of all
terms, they do not depend on how a product of three matrices is bracketed, and neither
do the bounds (numerics 2.2): a kernel may form (T V) - (T Q) S or T (V - Q S).

    product:  e = |A| eB + eA (|B| + eB), then n + 2 roundings of |A| |B| + e

for an inner length n (Higham, "Accuracy and Stability of Numerical Algorithms", 2002,
section 3.5), with sum_u for one rounding (2 u where sums truncate), after each operand
was rounded into the format that contracts call `operands`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.rules import Rules, Store
from scancheck.oracles.units import U64

FloatArray = NDArray[np.float64]

HUGE = 690.0  # exponents beyond which nothing is said any more


class Sized(NamedTuple):
    """Magnitudes from above and errors of an array that is not formed here."""

    size: FloatArray
    error: FloatArray

    @property
    def top(self) -> FloatArray:
        """What the computed entries are at most."""
        return self.size + self.error

    def turned(self) -> "Sized":
        """The transpose."""
        return Sized(turned(self.size), turned(self.error))

    def times(self, factor: FloatArray) -> "Sized":
        """Multiplied by exact magnitudes."""
        return Sized(self.size * factor, self.error * factor)


def turned(x: FloatArray) -> FloatArray:
    """The matrices transposed."""
    return np.swapaxes(x, -1, -2)


class Products:
    """Operations on sizes and errors under one set of rules, and the largest peak."""

    def __init__(self, rules: Rules, groups: int) -> None:
        # The matrices that bounds are made of are themselves rounded in fp64.
        self.u, self.sum_u = rules.u + U64, rules.sum_u + U64
        self.floor = rules.eta + rules.add_eta
        self.low: Store | None = rules.operand_cast
        self.peak = np.zeros(groups)

    @property
    def lost(self) -> float:
        """What one operand may be off by below the normal range."""
        return self.floor + (self.low.eta if self.low is not None else 0.0)

    def growth(self, count: float) -> float:
        """(1 + u)^n - 1 for roundings of sums of products."""
        return float(np.expm1(min(count * np.log1p(self.sum_u), HUGE)))

    def cast_growth(self, count: int) -> float:
        """What `count` casts of operands do to a value in the normal range."""
        if self.low is None:
            return 0.0
        return float(np.expm1(count * np.log1p(self.low.u)))

    def seen(self, x: Sized) -> Sized:
        """The same, its largest entry of each group kept in mind."""
        top = x.top.max(tuple(range(1, x.size.ndim)), initial=0.0)
        self.peak = np.maximum(self.peak, top)
        return x

    def cast(self, x: Sized, times: int = 1) -> Sized:
        """x rounded into the format of operands, once or several times."""
        if self.low is None:
            return x
        top = self.seen(x).top
        error = x.error + self.cast_growth(times) * top + times * self.low.eta
        over = ~(top <= self.low.largest)
        if over.any():
            beyond = over.any(tuple(range(1, over.ndim)))
            self.peak = np.where(beyond, np.inf, self.peak)
        return Sized(x.size, error)

    def product(self, a: Sized, b: Sized) -> Sized:
        """A B of [..., m, n] and [..., n, p], both cast."""
        n = a.size.shape[-1]
        a, b = self.cast(a), self.cast(b)
        size = a.size @ b.size
        return self.rounded(
            Sized(size, a.size @ b.error + a.error @ b.top), n + 2, floors=n + 2
        )

    def rounded(self, x: Sized, count: float, floors: float | None = None) -> Sized:
        """x after `count` roundings of each term, and as many losses below normal."""
        growth = self.growth(count)
        lost = (count if floors is None else floors) * self.floor * (1.0 + growth)
        return self.seen(Sized(x.size, x.error + growth * x.top + lost))

    def times(self, a: Sized, b: Sized) -> Sized:
        """Entry by entry."""
        error = a.size * b.error + a.error * b.top
        return self.rounded(Sized(a.size * b.size, error), 1)

    def plus(self, *terms: Sized) -> Sized:
        """The sum of terms of one shape, in any order."""
        size = sum((x.size for x in terms[1:]), terms[0].size)
        error = sum((x.error for x in terms[1:]), terms[0].error)
        return self.rounded(Sized(size, error), len(terms) - 1)


def exactly(value: FloatArray) -> Sized:
    """Known exactly."""
    return Sized(np.abs(value), np.zeros_like(value))
