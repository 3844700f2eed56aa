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


def exact_card_number(rules: Rules, values: Any) -> CardErrorNumber:
    """As `exact_number`, of values that are moved to the card unless they are there."""
    components = exact_number(rules, cuda_card.float64(values)).components
    return CardErrorNumber(rules, *components)
