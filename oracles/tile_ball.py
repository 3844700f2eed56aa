"""Balls of a tile whose decays exp(time times rate) wait until they are used.

They have as many entries as all states of a tile, from two factors that are far
smaller: formed at once they would pass through memory several times. The compiled scan
forms them row by row; anything else that uses them gets them formed as always.
"""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from scancheck.oracles.ball import Ball
from scancheck.oracles.ball_loops import add, multiply, sigmoid, softplus, turn
from scancheck.oracles.numbers import compact, plain

FloatArray = NDArray[np.float64]
Pair = tuple[FloatArray, FloatArray]  # values and radii

# Entries from which on a product waits.
LARGE = 2**14


class TileBall(Ball):
    """A ball whose large outer products wait, with fast passes over memory."""

    __slots__ = ()

    def __mul__(self, other: Self) -> Any:
        """x y; one [G, T, 1, L] times one [G, 1, K, L] waits."""
        left, right = self.shape, other.shape
        if len(left) == len(right) == 4 and left[3] == right[3]:
            if left[2] == right[1] == 1 and _is_large(left, right):
                return OuterProduct(self, other, False)
            if left[1] == right[2] == 1 and _is_large(right, left):
                return OuterProduct(other, self, False)
        if left == right and self.is_large:
            return self._new(multiply, *_flat(self), *_flat(other))
        return super().__mul__(other)

    def __add__(self, other: Self) -> Self:
        """x + y."""
        if self.shape == other.shape and self.is_large:
            return self._new(add, *_flat(self), *_flat(other))
        return super().__add__(other)

    @property
    def is_large(self) -> bool:
        """Whether compiled loops are worth their call."""
        return self.value.size >= LARGE // 4

    def softplus(self) -> Self:
        """log(1 + exp(x))."""
        if not self.is_large:
            return super().softplus()
        return self._new(softplus, *_flat(self))

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x))."""
        if not self.is_large:
            return super().sigmoid()
        return self._new(sigmoid, *_flat(self))

    def _new(self, loop: Callable[..., None], *operands: FloatArray) -> Self:
        """A ball of this shape, filled by a compiled loop over rows."""
        value, radius = np.empty(self.shape), np.empty(self.shape)
        loop(*operands, value.reshape(-1), radius.reshape(-1))
        return self.like(value, radius)

    def transpose(self, *axes: int) -> Self:
        """The axes permuted in memory too, for fast passes over other axes."""
        return self.mapped(lambda part: _transposed(part, axes))


def _transposed(part: FloatArray, axes: tuple[int, ...]) -> FloatArray:
    """A permuted array in C order; one repeated entry stays one."""
    *front, last, other = axes
    ordinary = front == list(range(len(front))) and last > other
    if not ordinary or part.size < LARGE // 4 or not any(part.strides):
        return compact(part.transpose(*axes))
    whole = plain(part)
    rows = whole.reshape(-1, *whole.shape[-2:])
    out = np.empty((len(rows), rows.shape[2], rows.shape[1]))
    turn(rows, out)
    return out.reshape(*whole.shape[:-2], *out.shape[1:])


def _flat(ball: Ball) -> Pair:
    """Values and radii in one row; no radii for an exact ball."""
    value = plain(ball.value).reshape(-1)
    return value, np.empty(0) if ball.exact else plain(ball.radius).reshape(-1)


def _is_large(steps: tuple[int, ...], keys: tuple[int, ...]) -> bool:
    """Whether the product has many entries, more than its factors."""
    entries = max(steps[0], keys[0]) * steps[1] * keys[2] * steps[3]
    return steps[1] > 1 and keys[2] > 1 and entries >= LARGE


class OuterProduct(TileBall):
    """Times by rates, [G, T, 1, L] and [G, 1, K, L], or exp of that."""

    __slots__ = ("_formed", "raised", "rates", "times")

    def __init__(self, times: Ball, rates: Ball, raised: bool) -> None:
        self.times, self.rates, self.raised = times, rates, raised
        self._formed: Pair | None = None

    def like(self, *components: FloatArray) -> Any:
        """An ordinary ball."""
        return TileBall(*components)

    @property
    def shape(self) -> tuple[int, ...]:
        """[G, T, K, L]."""
        return np.broadcast_shapes(self.times.shape, self.rates.shape)

    @property
    def components(self) -> Pair:  # type: ignore[override]
        """All values and radii, formed once."""
        if self._formed is None:
            product = Ball(*self.times.components) * Ball(*self.rates.components)
            formed = product.exp() if self.raised else product
            self._formed = formed.value, formed.radius
        return self._formed

    def exp(self) -> Any:
        """exp(x), which waits too."""
        if self.raised:
            return super().exp()
        return OuterProduct(self.times, self.rates, True)


class PlacedBall(TileBall):
    """Some steps of values and radii [2, G, all steps, L] that are kept whole."""

    __slots__ = ("whole",)

    def __init__(self, both: FloatArray, start: int, steps: int) -> None:
        super().__init__(*both[:, :, start : start + steps])
        self.whole = TileBall(*both)

    def like(self, *components: FloatArray) -> Any:
        """A ball with no place."""
        return TileBall(*components)


def exact_tile_ball(values: FloatArray) -> TileBall:
    """Stored values, known exactly: one zero, repeated, is their radius."""
    return TileBall(values, np.broadcast_to(0.0, values.shape))
