"""Products of what differs by key and what differs by lane, formed where they are used.

k v^T, and a decay of keys and of values, have as many entries as all states of a tile.
A scan forms them as it goes, and anything else that uses them gets them formed.
"""

from typing import Any

import numpy as np

from scancheck.bounds.error_number import ErrorNumber

AXES = 4  # of a tile: groups, tokens, keys, lanes


class FactoredNumber(ErrorNumber):
    """An error number whose outer products are kept as their two factors."""

    __slots__ = ()

    def __mul__(self, other: Any) -> Any:
        if _are_apart(self.shape, other.shape):
            return OuterProduct(self, other)
        return self.times(other)


class OuterProduct(FactoredNumber):
    """[G, T, K, 1] times [G, T, 1, L]."""

    __slots__ = ("_formed", "factors")

    def __init__(self, left: FactoredNumber, right: FactoredNumber) -> None:
        self.rules, self.terms = left.rules, left.terms * right.terms
        self.factors = left, right
        self._formed: FactoredNumber | None = None

    @property
    def formed(self) -> FactoredNumber:
        """The product as an ordinary number, formed once."""
        if self._formed is None:
            left, right = self.factors
            self._formed = left.times(right)
        return self._formed

    @property
    def is_formed(self) -> bool:
        """Whether something has used the entries already."""
        return self._formed is not None

    @property
    def shape(self) -> tuple[int, ...]:
        """[G, T, K, L]."""
        return np.broadcast_shapes(*(factor.shape for factor in self.factors))

    @property
    def components(self) -> tuple[Any, ...]:  # type: ignore[override]
        """All four of every entry."""
        return self.formed.components

    def like(self, *components: Any) -> Any:
        """An ordinary number."""
        return self.formed.like(*components)

    def _new(self, *parts: Any, terms: int = 1) -> Any:
        """An ordinary number, too."""
        return self.formed._new(*parts, terms=terms)

    def times(self, other: Any) -> Any:
        """The product, as the factors form it."""
        return self.formed.times(other)

    def exp(self) -> Any:
        """The exponential, as that of the factors is formed."""
        return self.formed.exp()


def factors_of(x: ErrorNumber) -> tuple[ErrorNumber, ErrorNumber | None]:
    """Both factors of an outer product that is not formed yet, or the number alone."""
    if isinstance(x, OuterProduct) and not x.is_formed:
        return x.factors
    return x, None


def _are_apart(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """Whether one number has several keys and the other several lanes."""
    if not len(left) == len(right) == AXES:
        return False
    return left[3] == right[2] == 1 and min(left[2], right[3]) > 1
