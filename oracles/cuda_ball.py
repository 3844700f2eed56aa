"""fp64 balls on the card: arithmetic by the kernels of ball_elementwise.cu.

The formulas are those of `scancheck.oracles.ball_loops`, operation by operation, so
that values and radii equal the CPU's to the bit; sums over axes may associate otherwise
and have the same bound.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Self

import numpy as np

from scancheck.oracles import cuda_card
from scancheck.oracles.ball import Ball
from scancheck.oracles.cuda_card import AXES


class CudaBall(Ball):
    """Values and radii on the card."""

    __slots__ = ()

    @property
    def exact(self) -> bool:
        """Whether the radius is the one repeated zero of `exact_cuda_ball`."""
        return is_repeated_zero(self.radius)

    @property
    def whole(self) -> Self:
        """Itself: a tile of all steps is kept, not copied."""
        return self

    @property
    def parts(self) -> tuple[Any, Any]:
        """Values, and radii or None where they are zero."""
        return self.value, None if self.exact else self.radius

    def __add__(self, other: Self) -> Any:
        return self._elementwise("Add", other)

    def __mul__(self, other: Self) -> Any:
        """x y; one [G, T, 1, L] times one [G, 1, K, L] waits."""
        for times, rates in ((self, other), (other, self)):
            left, right = times.shape, rates.shape
            full = len(left) == len(right) == AXES and left[3] == right[3]
            if full and left[2] == right[1] == 1 and left[1] > 1 and right[2] > 1:
                return CudaOuterProduct(times, rates, raised=False)
        return self._elementwise("Multiply", other)

    def one_minus(self) -> Any:
        """1 - x."""
        return self._elementwise("OneMinus")

    def exp(self) -> Any:
        """exp(x)."""
        return self._elementwise("Exp")

    def softplus(self) -> Any:
        """log(1 + exp(x))."""
        return self._elementwise("Softplus")

    def sigmoid(self) -> Any:
        """1 / (1 + exp(-x))."""
        return self._elementwise("Sigmoid")

    def reciprocal(self) -> Any:
        """1 / x."""
        return self._elementwise("Reciprocal")

    def mapped(self, move: Callable[[Any], Any]) -> Any:
        """`move` applied to every component; exact values stay exact."""
        value = move(self.value)
        if self.exact:
            return self.like(value, repeated_zeros(value.shape))
        return self.like(value, move(self.radius))

    def transpose(self, *axes: int) -> Any:
        """The axes permuted in memory too, so that neighbours stay neighbours."""
        return self.mapped(lambda part: part.transpose(*axes).copy())

    def _elementwise(self, operation: str, *others: Self) -> Any:
        """One operation on the entries of this ball and another, broadcast."""
        shape = np.broadcast_shapes(self.shape, *(other.shape for other in others))
        if len(shape) > AXES:
            return cuda_card.in_few_axes(
                lambda x, *rest: x._elementwise(operation, *rest),
                (self, *others),
                shape,
            )
        xp = cuda_card.arrays()
        value, radius = xp.empty(shape), xp.empty(shape)
        full = (1,) * (AXES - len(shape)) + shape
        operands = [_operand(x) for x in (self, *others, self)[:2]]
        cuda_card.launch(
            "ball_elementwise.cu",
            f"elementwise<{operation}>",
            value.size,
            [
                *operands,
                cuda_card.room((value, radius), range(AXES - len(shape), AXES)),
                cuda_card.count(*full),
            ],
        )
        return self.like(value, radius)


def _operand(x: CudaBall) -> cuda_card.Argument:
    return cuda_card.operand(x.parts, range(AXES - len(x.shape), AXES))


class CudaOuterProduct(CudaBall):
    """Times by rates, [G, T, 1, L] and [G, 1, K, L], or exp of that.

    It has as many entries as all states of a tile: the scan forms them as it goes, and
    anything else that uses them gets them formed.
    """

    __slots__ = ("_formed", "raised", "rates", "times")

    def __init__(self, times: CudaBall, rates: CudaBall, *, raised: bool) -> None:
        self.times, self.rates, self.raised = times, rates, raised
        self._formed: CudaBall | None = None

    def like(self, *components: Any) -> Any:
        """An ordinary ball."""
        return CudaBall(*components)

    @property
    def shape(self) -> tuple[int, ...]:
        """[G, T, K, L]."""
        return np.broadcast_shapes(self.times.shape, self.rates.shape)

    @property
    def components(self) -> tuple[Any, ...]:  # type: ignore[override]
        """All values and radii, formed once."""
        if self._formed is None:
            product = self.times._elementwise("Multiply", self.rates)
            self._formed = product.exp() if self.raised else product
        return self._formed.components

    def exp(self) -> Any:
        """exp(x), which waits too."""
        if self.raised:
            return super().exp()
        return CudaOuterProduct(self.times, self.rates, raised=True)


def repeated_zero() -> Any:
    """The zero that exact numbers repeat, one on each device."""
    return _zero(cuda_card.arrays(), cuda_card.device_index())


def repeated_zeros(shape: tuple[int, ...]) -> Any:
    """That zero as an array of a shape."""
    return cuda_card.arrays().broadcast_to(repeated_zero(), shape)


def is_repeated_zero(part: Any) -> bool:
    """Whether an array is of that zero; numbers are asked this time and again."""
    zero = _zero_address(cuda_card.arrays(), cuda_card.device_index())
    return cuda_card.address(part) == zero


@cache
def _zero(xp: Any, device: int) -> Any:
    return xp.zeros(())


@cache
def _zero_address(xp: Any, device: int) -> int:
    return cuda_card.address(_zero(xp, device))


def exact_cuda_ball(values: Any) -> CudaBall:
    """Stored values, known exactly, moved to the card unless they are there."""
    moved = cuda_card.float64(values)
    return CudaBall(moved, repeated_zeros(moved.shape))
