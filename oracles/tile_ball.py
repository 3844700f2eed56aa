"""Balls of a tile whose decays wait until they are used, as two factors.

exp(time times rate), and a decay of keys times one of values, have as many entries as
all states of a tile, from two factors that are far smaller: formed at once they would
pass through memory several times. The compiled scan forms them row by row; anything
else that uses them gets them formed as always.
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
        """x y; one [G, T, 1, L] times one [G, 1, K, L] or [G, T, K, 1] waits."""
        left, right = self.shape, other.shape
        apart = len(left) == len(right) == 4 and left[3] == right[2] == 1
        if apart and _is_large(right, left):
            return DecayProduct(self, other)
        if len(left) == len(right) == 4 and left[3] == right[3]:
            if left[2] == right[1] == 1 and _is_large(left, right):
                return TimedRate(self, other, False)
            if left[1] == right[2] == 1 and _is_large(right, left):
                return TimedRate(other, self, False)
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
    """A product [G, T, K, L] of two far smaller balls that waits."""

    __slots__ = ("_formed", "factors")

    def __init__(self, *factors: Ball) -> None:
        self.factors = factors
        self._formed: Pair | None = None

    def like(self, *components: FloatArray) -> Any:
        """An ordinary ball."""
        return TileBall(*components)

    @property
    def shape(self) -> tuple[int, ...]:
        """[G, T, K, L]."""
        return np.broadcast_shapes(*(factor.shape for factor in self.factors))

    @property
    def is_formed(self) -> bool:
        """Whether something has used the entries already."""
        return self._formed is not None

    @property
    def components(self) -> Pair:  # type: ignore[override]
        """All values and radii, formed once."""
        if self._formed is None:
            self._formed = self._form()
        return self._formed

    def _form(self) -> Pair:
        one, other = (Ball(*factor.components) for factor in self.factors)
        product = one * other
        return product.value, product.radius


class DecayProduct(OuterProduct):
    """A decay of keys [G, T, K, 1] times one of values [G, T, 1, L]."""

    __slots__ = ()


class TimedRate(OuterProduct):
    """Times by rates, [G, T, 1, L] and [G, 1, K, L], or exp of that."""

    __slots__ = ("raised",)

    def __init__(self, times: Ball, rates: Ball, raised: bool) -> None:
        super().__init__(times, rates)
        self.raised = raised

    def _form(self) -> Pair:
        value, radius = super()._form()
        if not self.raised:
            return value, radius
        power = Ball(value, radius).exp()
        return power.value, power.radius

    def exp(self) -> Any:
        """exp(x), which waits too."""
        if self.raised:
            return super().exp()
        times, rates = self.factors
        return TimedRate(times, rates, True)


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
