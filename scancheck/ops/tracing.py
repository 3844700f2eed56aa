"""Reverse mode over the number protocol, for ops that say no pullback of their own.

A `Traced` number does what its number does and remembers how; `pull_back` hands
cotangents from results to what they were made from (Griewank and Walther, "Evaluating
derivatives", 2008, chapter 3). All arithmetic is that of the numbers: so one trace
gives certified gradients over balls, and their budgets over error numbers.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

import numpy as np

from scancheck.errors import CaseInvalid

Pull = Callable[[Any], Any]  # from the cotangent of a result to that of an operand

_order = count()


class Traced:
    """A number with the operands it was made from."""

    __slots__ = ("made", "operands", "value")

    def __init__(self, value: Any, *operands: tuple["Traced", Pull]) -> None:
        self.value, self.operands, self.made = value, operands, next(_order)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the number."""
        return tuple(self.value.shape)

    def __add__(self, other: "Traced") -> "Traced":
        return Traced(
            self.value + other.value,
            (self, lambda bar: _folded(bar, self.shape)),
            (other, lambda bar: _folded(bar, other.shape)),
        )

    def __mul__(self, other: "Traced") -> "Traced":
        return Traced(
            self.value * other.value,
            (self, lambda bar: _folded(bar * other.value, self.shape)),
            (other, lambda bar: _folded(bar * self.value, other.shape)),
        )

    def __neg__(self) -> "Traced":
        return Traced(-self.value, (self, lambda bar: -bar))

    def __getitem__(self, index: Any) -> "Traced":
        index = index if isinstance(index, tuple) else (index,)
        return Traced(
            self.value[index], (self, lambda bar: _taken_back(bar, index, self.shape))
        )

    def one_minus(self) -> "Traced":
        """1 - x."""
        return Traced(self.value.one_minus(), (self, lambda bar: -bar))

    def exp(self) -> "Traced":
        """exp(x), its own derivative."""
        y = self.value.exp()
        return Traced(y, (self, lambda bar: bar * y))

    def softplus(self) -> "Traced":
        """log(1 + exp(x)), with derivative sigmoid(x)."""
        return Traced(
            self.value.softplus(), (self, lambda bar: bar * self.value.sigmoid())
        )

    def sigmoid(self) -> "Traced":
        """y = 1 / (1 + exp(-x)), with derivative y (1 - y)."""
        y = self.value.sigmoid()
        return Traced(y, (self, lambda bar: bar * (y * (-self.value).sigmoid())))

    def silu(self) -> "Traced":
        """x sigmoid(x)."""
        return Traced(
            self.value.silu(), (self, lambda bar: bar * self.value.silu_slope())
        )

    def reciprocal(self) -> "Traced":
        """y = 1 / x, with derivative -y^2."""
        y = self.value.reciprocal()
        return Traced(y, (self, lambda bar: -(bar * (y * y))))

    def maximum(self, other: "Traced") -> "Traced":
        """The larger one, with the derivative of that one."""
        x, y = self.value, other.value
        own = x.exceeds(y)
        return Traced(
            x.maximum(y),
            (self, lambda bar: _folded(bar * own, self.shape)),
            (other, lambda bar: _folded(bar * own.one_minus(), other.shape)),
        )

    def exceeds(self, other: "Traced") -> "Traced":
        """1 or 0, without a derivative."""
        return Traced(self.value.exceeds(other.value))

    def held(self) -> "Traced":
        """The value as if it were given, without a derivative."""
        return Traced(self.value.held())

    def sum(self, axis: int | tuple[int, ...]) -> "Traced":
        """The sum over axes."""
        axes = (axis,) if isinstance(axis, int) else axis
        axes = tuple(one % len(self.shape) for one in axes)
        kept = tuple(1 if i in axes else n for i, n in enumerate(self.shape))
        return Traced(
            self.value.sum(axes),
            (self, lambda bar: bar.reshape(*kept).broadcast_to(self.shape)),
        )

    def as_part(self) -> "Traced":
        """The number as part of a gradient."""
        return Traced(self.value.as_part(), (self, lambda bar: bar.as_part()))

    def as_operand(self) -> "Traced":
        """The number where it enters a matrix product, whose cotangent does too."""
        return Traced(self.value.as_operand(), (self, lambda bar: bar.as_operand()))

    def losing(self, count: Callable[[], Any]) -> "Traced":
        """The number where other orders of its products may lose more."""
        return Traced(self.value.losing(count), (self, lambda bar: bar))

    def transpose(self, *axes: int) -> "Traced":
        """The axes permuted."""
        back = [int(i) for i in np.argsort(axes)]
        return Traced(
            self.value.transpose(*axes), (self, lambda bar: bar.transpose(*back))
        )

    def reshape(self, *shape: int) -> "Traced":
        """The entries in another shape."""
        return Traced(
            self.value.reshape(*shape), (self, lambda bar: bar.reshape(*self.shape))
        )

    def joined(self, other: "Traced", axis: int) -> "Traced":
        """The entries of another number behind its own, along an axis."""
        axis %= len(self.shape)
        before, own = (slice(None),) * axis, self.shape[axis]
        return Traced(
            self.value.joined(other.value, axis),
            (self, lambda bar: bar[(*before, slice(own))]),
            (other, lambda bar: bar[(*before, slice(own, None))]),
        )


def pull_back(
    results: Iterable[tuple[Traced, Any]], leaves: Sequence[Traced]
) -> list[Any]:
    """The cotangents of the leaves, None for one that no result depends on."""
    bars: dict[Traced, Any] = {}

    def give(to: Traced, bar: Any) -> None:
        bars[to] = bars[to] + bar if to in bars else bar

    for result, bar in results:
        give(result, _folded(bar, result.shape))
    kept = set(leaves)
    # Whatever is made later depends on what was made before, never the other way.
    while left := [one for one in bars if one not in kept]:
        last = max(left, key=lambda one: one.made)
        bar = bars.pop(last)
        for operand, pull in last.operands:
            give(operand, pull(bar))
    return [bars.get(leaf) for leaf in leaves]


def _folded(bar: Any, shape: tuple[int, ...]) -> Any:
    """The cotangent summed over axes that were repeated."""
    lead = len(bar.shape) - len(shape)
    axes = tuple(range(lead)) + tuple(
        i + lead for i, n in enumerate(shape) if n == 1 < bar.shape[i + lead]
    )
    return bar.sum(axes).reshape(*shape) if axes else bar


def _taken_back(bar: Any, index: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
    """The cotangent of x from that of x[index]: new axes, and entries that repeat.

    Raises CaseInvalid for another index: one that leaves entries out.
    """
    axis = 0  # of bar; it has no new axis any more before this one
    for entry in index:
        if entry is None:
            bar = bar.reshape(*bar.shape[:axis], *bar.shape[axis + 1 :])
            continue
        if isinstance(entry, list):
            bar = _summed_repeats(bar, axis, entry, shape[axis])
        elif entry != slice(None):
            raise CaseInvalid(
                "lower: expected an index of None, `:` or a list that takes every "
                f"entry equally often; got {entry!r}"
            )
        axis += 1
    return bar


def _summed_repeats(bar: Any, axis: int, entries: list[int], own: int) -> Any:
    times, left = divmod(len(entries), own) if own else (0, 0)
    if left or sorted(entries) != [i for i in range(own) for _ in range(times)]:
        raise CaseInvalid(
            "lower: expected a list that takes every entry equally often; got "
            f"{entries}"
        )
    order = [int(i) for i in np.argsort(entries, kind="stable")]
    before = (slice(None),) * axis
    bar = bar[(*before, order)]
    rest = bar.shape[axis + 1 :]
    return bar.reshape(*bar.shape[:axis], own, times, *rest).sum(axis + 1)
