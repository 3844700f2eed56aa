"""The number protocol: arrays whose entries are pairs or triples of components.

`ArrayNumber` gives every kind of number its shape operations; a kind adds arithmetic.
Ops are written over this protocol once (scancheck.ops.normal_form.Number).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class ArrayNumber:
    """Component arrays of one shape that are indexed and moved together."""

    __slots__ = ("components",)

    def __init__(self, *components: Array) -> None:
        self.components = components

    def like(self, *components: Array) -> Self:
        """The same kind of number with other components."""
        return type(self)(*components)

    @property
    def shape(self) -> tuple[int, ...]:
        """The common shape of the components."""
        return tuple(self.components[0].shape)

    def mapped(self, move: Callable[[Array], Array]) -> Self:
        """`move`, which must not change values, applied to every component."""
        return self.like(*(move(part) for part in self.components))

    def __getitem__(self, index: Any) -> Self:
        return self.mapped(lambda part: part[index])

    def transpose(self, *axes: int) -> Self:
        """The axes permuted."""
        return self.mapped(lambda part: part.transpose(*axes))

    def reshape(self, *shape: int) -> Self:
        """The entries in another shape."""
        return self.mapped(lambda part: part.reshape(*shape))

    def joined(self, other: Self, axis: int) -> Self:
        """The entries of another number of this kind behind its own, along an axis."""
        pairs = zip(self.components, other.components, strict=True)
        return self.like(*(np.concatenate(pair, axis) for pair in pairs))

    def as_part(self) -> Self:
        """The number as part of a gradient, before parts are added up."""
        return self

    def as_operand(self) -> Self:
        """The number where it enters a matrix product: a kernel may round it there."""
        return self

    def losing(self, count: Callable[[], Any]) -> Self:
        """The number where other orders of its products may lose more below the range.

        So many of the smallest results at most, counted for those who bound them.
        """
        return self

    def broadcast_to(self, shape: tuple[int, ...]) -> Self:
        """Axes of size 1 repeated."""
        return self.mapped(lambda part: np.broadcast_to(part, shape))


def compact(part: Array) -> Array:
    """The array in C order, unless it is one repeated entry."""
    return part.copy() if any(part.strides) and not part.flags.c_contiguous else part


def plain(part: Array) -> Array:
    """The array as compiled loops are compiled for: in C order and writable."""
    return np.require(part, requirements=("C", "W"))


N = TypeVar("N", bound=ArrayNumber)


def stack(numbers: Sequence[N], axis: int) -> N:
    """Numbers of one kind and shape joined along a new axis."""
    columns = zip(*(number.components for number in numbers), strict=True)
    return numbers[0].like(*(np.stack(column, axis) for column in columns))


class Joined(Generic[N]):
    """A number put together from tiles along one axis, which are not kept."""

    def __init__(self, axis: int, size: int) -> None:
        self.axis, self.size = axis, size
        self.number: N | None = None

    def put(self, start: int, tile: N) -> None:
        """Writes a tile to its place, unless it is part of the whole already."""
        shape = list(tile.shape)
        shape[self.axis] = self.size
        whole = getattr(tile, "whole", None)
        if whole is not None and whole.shape == tuple(shape):
            self.number = whole
            return
        if self.number is None:
            # Where the tile is: NumPy hands on to the module of its arrays.
            room = partial(np.empty_like, shape=shape, order="C")
            self.number = tile.like(*map(room, tile.components))
        stop = start + tile.shape[self.axis]
        index = (*(slice(None),) * self.axis, slice(start, stop))
        parts = zip(self.number.components, tile.components, strict=True)
        for whole_part, part in parts:
            whole_part[index] = part


def concatenate(numbers: Sequence[N], axis: int) -> N:
    """Numbers of one kind joined along an existing axis."""
    columns = zip(*(number.components for number in numbers), strict=True)
    return numbers[0].like(*(np.concatenate(column, axis) for column in columns))
