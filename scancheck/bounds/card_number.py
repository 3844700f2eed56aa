"""Error numbers on a card: inputs, exponentials and products by kernels of their own.

The formulas are those of `ErrorNumber`, operation by operation; the rest of them is
arithmetic on arrays. Products pass over all states of a tile. Inputs and exponentials
are small, and took more launches than all the rest.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from scancheck.bounds.outer_product import FactoredNumber
from scancheck.bounds.rules import Rules
from scancheck.oracles import cuda_card
from scancheck.oracles.cuda_card import AXES

# The struct Format of the source.
FORMAT = [("precision", "i8"), ("emin", "i8"), ("largest", "f8"), ("infinity", "i8")]


class CardErrorNumber(FactoredNumber):
    """Value, magnitude, error and peak on the card."""

    __slots__ = ()

    def times(self, other: Any) -> Any:
        """The product, formed here and now."""
        shape = np.broadcast_shapes(self.shape, other.shape)
        if len(shape) > AXES:
            return super().times(other)
        rounding = cuda_card.numbers(self.rules.u, self.rules.eta)
        factors = self, other
        out = _elementwise("bounds_tile.cu", "error_product", factors, rounding)
        terms = self.terms * other.terms
        return CardErrorNumber(self.rules, *out, terms=terms)

    def exp(self) -> Any:
        """exp(x) with the kernel's own relative error."""
        if len(self.shape) > AXES:
            return super().exp()
        model = cuda_card.numbers(*self.rules.exp, self.rules.eta)
        return CardErrorNumber(
            self.rules,
            *_elementwise("bounds_elementwise.cu", "error_exp", (self,), model),
        )


def _elementwise(
    source: str, kernel: str, numbers: Sequence[Any], constants: cuda_card.Argument
) -> Any:
    """All four components of an operation on numbers of up to AXES axes."""
    shape = np.broadcast_shapes(*(x.shape for x in numbers))
    out = cuda_card.arrays().empty((4, *shape))
    cuda_card.launch(
        source,
        kernel,
        out[0].size,
        [
            *(
                cuda_card.operand(x.components, range(AXES - len(x.shape), AXES))
                for x in numbers
            ),
            constants,
            cuda_card.room(out, range(AXES - len(shape), AXES)),
            cuda_card.count(*(1,) * (AXES - len(shape)), *shape),
        ],
    )
    return out


def exact_card_number(rules: Rules, values: Any) -> CardErrorNumber:
    """As `exact_number`, of values that are moved to the card unless they are there."""
    xp, compute = cuda_card.arrays(), rules.compute
    values = xp.ascontiguousarray(cuda_card.float64(values))
    found = xp.empty((3, *values.shape))
    cuda_card.launch(
        "bounds_elementwise.cu",
        "error_given",
        values.size,
        [
            cuda_card.pointer(values),
            np.array(
                [
                    (
                        compute.precision,
                        compute.emin,
                        compute.largest,
                        compute.has_infinity,
                    )
                ],
                dtype=FORMAT,
            ),
            cuda_card.numbers(rules.u),
            cuda_card.numbers(rules.eta),
            cuda_card.numbers(compute.smallest_normal if rules.flush else 0.0),
            cuda_card.pointer(found),
            cuda_card.count(values.size),
        ],
    )
    return CardErrorNumber(rules, values, *found)
