"""Error numbers on a card: inputs, exponentials and products by kernels of their own.

The formulas are those of `ErrorNumber`, operation by operation; the rest of them is
arithmetic on arrays. Products pass over all states of a tile. Inputs and exponentials
are small, and took more launches than all the rest.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from scancheck.bounds.error_number import ErrorNumber
from scancheck.bounds.rules import Rules
from scancheck.oracles import cuda_card
from scancheck.oracles.cuda_card import AXES

# The struct Format of the source.
FORMAT = [("precision", "i8"), ("emin", "i8"), ("largest", "f8"), ("infinity", "i8")]


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
