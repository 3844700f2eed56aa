"""Error numbers on a card: products, which pass over all states of a tile, in a kernel.

The formulas are those of `ErrorNumber`, operation by operation; the rest of them is
arithmetic on arrays.
"""

from typing import Any

import numpy as np

from scancheck.bounds.error_number import ErrorNumber, exact_number
from scancheck.bounds.rules import Rules
from scancheck.oracles import cuda_card
from scancheck.oracles.cuda_card import AXES


class CardErrorNumber(ErrorNumber):
    """Value, magnitude, error and peak on the card."""

    __slots__ = ()

    def __mul__(self, other: Any) -> Any:
        shape = np.broadcast_shapes(self.shape, other.shape)
        if len(shape) > AXES:
            return super().__mul__(other)
        if _are_apart(self.shape, other.shape):
            return CardOuterProduct(self, other)
        return self.times(other)

    def times(self, other: Any) -> Any:
        """The product, formed here and now."""
        shape = np.broadcast_shapes(self.shape, other.shape)
        out = cuda_card.arrays().empty((4, *shape))
        axes = range(AXES - len(shape), AXES)
        cuda_card.launch(
            "bounds_tile.cu",
            "error_product",
            out[0].size,
            [
                *(
                    cuda_card.operand(x.components, range(AXES - len(x.shape), AXES))
                    for x in (self, other)
                ),
                cuda_card.numbers(self.rules.u, self.rules.eta),
                cuda_card.room(out, axes),
                cuda_card.count(*(1,) * (AXES - len(shape)), *shape),
            ],
        )
        terms = self.terms * other.terms
        return CardErrorNumber(self.rules, *out, terms=terms)


class CardOuterProduct(CardErrorNumber):
    """[G, T, K, 1] times [G, T, 1, L], as many entries as all states of a tile.

    A scan forms them as it goes, and anything else that uses them gets them formed.
    """

    __slots__ = ("_formed", "factors")

    def __init__(self, left: CardErrorNumber, right: CardErrorNumber) -> None:
        self.rules, self.terms = left.rules, left.terms * right.terms
        self.factors = left, right
        self._formed: CardErrorNumber | None = None

    def like(self, *components: Any) -> Any:
        """An ordinary number."""
        return CardErrorNumber(self.rules, *components, terms=self.terms)

    def _new(self, *parts: Any, terms: int = 1) -> Any:
        """An ordinary number, too."""
        return self.factors[0]._new(*parts, terms=terms)

    @property
    def shape(self) -> tuple[int, ...]:
        """[G, T, K, L]."""
        return np.broadcast_shapes(*(factor.shape for factor in self.factors))

    @property
    def components(self) -> tuple[Any, ...]:  # type: ignore[override]
        """All four of every entry, formed once."""
        if self._formed is None:
            left, right = self.factors
            self._formed = left.times(right)
        return self._formed.components


def _are_apart(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """Whether one number has several keys and the other several lanes."""
    if not len(left) == len(right) == AXES:
        return False
    return left[3] == right[2] == 1 and min(left[2], right[3]) > 1


def factors_of(x: ErrorNumber) -> tuple[ErrorNumber, ErrorNumber | None]:
    """Both factors of an outer product that is not formed yet, or the number alone."""
    if isinstance(x, CardOuterProduct) and x._formed is None:
        return x.factors
    return x, None


def exact_card_number(rules: Rules, values: Any) -> CardErrorNumber:
    """As `exact_number`, of values that are moved to the card unless they are there."""
    components = exact_number(rules, cuda_card.float64(values)).components
    return CardErrorNumber(rules, *components)
