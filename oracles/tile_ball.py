"""Balls of a tile whose outer products wait until a task asks for its part of them.

An op's decay such as exp(d_t A) has as many entries as all states of a tile, from two
factors that are far smaller. Formed at once it would pass through memory several times;
formed for the lanes of one task it stays in a core's cache.
"""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from scancheck.oracles.ball import Ball
from scancheck.oracles.ball_loops import exp_radius, outer_product
from scancheck.oracles.numbers import compact, plain

FloatArray = NDArray[np.float64]
Pair = tuple[FloatArray, FloatArray]  # values and radii
Factors = tuple[FloatArray, FloatArray, FloatArray, FloatArray]  # of two balls

# Entries from which on a product waits, and about as many of it as are formed at once.
LARGE = 2**14
PART_ENTRIES = 2**15
# Lanes of a task that forms its part of a product.
PART_LANES = 128


class TileBall(Ball):
    """A ball whose large outer products wait."""

    __slots__ = ()

    def __mul__(self, other: Self) -> Any:
        """x y; one [G, T, 1, L] times one [G, 1, K, L] waits."""
        left, right = self.shape, other.shape
        if len(left) == len(right) == 4 and left[3] == right[3]:
            if left[2] == right[1] == 1 and _is_large(left, right):
                return _outer(self, other)
            if left[1] == right[2] == 1 and _is_large(right, left):
                return _outer(other, self)
        return super().__mul__(other)

    def transpose(self, *axes: int) -> Self:
        """The axes permuted in memory too, for fast passes over other axes."""
        return self.mapped(lambda part: compact(part.transpose(*axes)))


def part_steps(keys: int, lanes: int) -> int:
    """How many steps of a product to form at once."""
    return max(1, PART_ENTRIES // max(1, keys * lanes))


def _is_large(steps: tuple[int, ...], keys: tuple[int, ...]) -> bool:
    """Whether the product has many entries, more than its factors."""
    entries = max(steps[0], keys[0]) * steps[1] * keys[2] * steps[3]
    return steps[1] > 1 and keys[2] > 1 and entries >= LARGE


class OuterProduct(TileBall):
    """Steps times keys, [G, T, 1, L] and [G, 1, K, L], or exp of that."""

    __slots__ = ("_formed", "factors", "raised")

    def __init__(self, factors: Factors, raised: bool) -> None:
        self.factors, self.raised = factors, raised
        self._formed: Pair | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """[G, T, K, L]."""
        steps, _, keys, _ = self.factors
        return max(len(steps), len(keys)), steps.shape[1], *keys.shape[1:]

    def like(self, *components: FloatArray) -> Any:
        """An ordinary ball."""
        return TileBall(*components)

    @property
    def components(self) -> Pair:  # type: ignore[override]
        """All values and radii, formed once."""
        if self._formed is None:
            groups, steps, _, lanes = self.shape
            parts = [self.part(g, 0, steps, 0, lanes) for g in range(groups)]
            value, radius = zip(*parts, strict=True)
            self._formed = np.concatenate(value), np.concatenate(radius)
        return self._formed

    def exp(self) -> Any:
        """exp(x), which waits too."""
        return super().exp() if self.raised else OuterProduct(self.factors, True)

    def part(self, g: int, start: int, stop: int, first: int, last: int) -> Pair:
        """Values and radii of one group, some steps and some lanes, [1, T, K, L]."""
        value = np.empty((1, stop - start, self.shape[2], last - first))
        radius = np.empty_like(value)
        outer_product(*self.factors, value, radius, g, start, first)
        if not self.raised:
            return value, radius
        with np.errstate(over="ignore", invalid="ignore"):
            np.exp(value, out=value)
            if exp_radius(value.reshape(-1), radius.reshape(-1)) > 0:
                outer_product(*self.factors, value, radius, g, start, first)
                value, radius = Ball(value, radius).exp().components
        return value, radius


def _outer(steps: Ball, keys: Ball) -> OuterProduct:
    """The product of [G, T, 1, L] and [G, 1, K, L], not formed yet."""
    x, rx = (plain(part) for part in steps[:, :, 0].components)
    y, ry = (plain(part) for part in keys[:, 0].components)
    return OuterProduct((x, rx, y, ry), False)


def exact_tile_ball(values: FloatArray) -> TileBall:
    """Stored values, known exactly: one zero, repeated, is their radius."""
    return TileBall(values, np.broadcast_to(0.0, values.shape))
