"""Reverse-mode differentiation of model arithmetic, one rounded operation at a time.

A `Tape` runs an algorithm forwards and keeps what each operation needs to go back;
`pull_back` then gives the cotangents of its inputs, in the same arithmetic and in the
reverse order of operations. Where a value is used twice its cotangents are added, the
later use first. Every sum over an axis ascends. Source: Griewank and Walther,
"Evaluating Derivatives" (2008), chapter 3.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scancheck.formats import Format
from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.matrix_products import MatrixProducts, transposed
from scancheck.kernels.models.reduction import ascending_sum
from scancheck.kernels.models.running import running_sums

Pull = Callable[[Array], None]


@dataclass(slots=True, eq=False)
class Variable:
    """An array on a tape, and its cotangent on the way back."""

    value: Array
    bar: Array | None = None
    own: bool = False  # whether no other variable has the same `bar`

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return self.value.shape


class Tape:
    """Operations on variables; arrays broadcast as in NumPy."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic
        self._steps: list[tuple[Variable, Pull]] = []

    def record(self, value: Array, pull: Pull) -> Variable:
        """The result of an operation; `pull` hands its cotangent on."""
        result = Variable(value)
        self._steps.append((result, pull))
        return result

    def pull_back(self, seeds: Sequence[tuple[Variable, Array]]) -> None:
        """Sets the cotangents of all variables from those of the results."""
        for variable, bar in seeds:
            self.add_to(variable, bar)
        for result, pull in reversed(self._steps):
            if result.bar is not None:
                pull(result.bar)

    def add_to(self, variable: Variable, bar: Array) -> None:
        """One more cotangent of a variable, summed over axes that were broadcast."""
        bar = self._unbroadcast(bar, variable.shape)
        if variable.bar is None:
            variable.bar = bar
        else:
            variable.bar = self.arithmetic.add(variable.bar, bar)
            variable.own = True

    def _unbroadcast(self, bar: Array, shape: tuple[int, ...]) -> Array:
        while bar.ndim > len(shape):
            bar = ascending_sum(self.arithmetic, bar, 0)
        for axis, size in enumerate(shape):
            if size == 1 < bar.shape[axis]:
                bar = np.expand_dims(ascending_sum(self.arithmetic, bar, axis), axis)
        return bar

    def summed(self, x: Array) -> Array:
        """The ascending sum over the last axis of an array."""
        return ascending_sum(self.arithmetic, x, -1)

    def add(self, x: Variable, y: Variable) -> Variable:
        """x + y."""

        def pull(bar: Array) -> None:
            self.add_to(x, bar)
            self.add_to(y, bar)

        return self.record(self.arithmetic.add(x.value, y.value), pull)

    def sub(self, x: Variable, y: Variable) -> Variable:
        """x - y."""

        def pull(bar: Array) -> None:
            self.add_to(x, bar)
            self.add_to(y, -bar)

        return self.record(self.arithmetic.sub(x.value, y.value), pull)

    def mul(self, x: Variable, y: Variable) -> Variable:
        """x y elementwise."""
        mul = self.arithmetic.mul

        def pull(bar: Array) -> None:
            self.add_to(x, mul(bar, y.value))
            self.add_to(y, mul(bar, x.value))

        return self.record(mul(x.value, y.value), pull)

    def neg(self, x: Variable) -> Variable:
        """-x, which is exact."""
        return self.record(-x.value, lambda bar: self.add_to(x, -bar))

    def exp(self, x: Variable) -> Variable:
        """e**x."""
        y = self.arithmetic.exp(x.value)
        return self.record(y, lambda bar: self.add_to(x, self.arithmetic.mul(y, bar)))

    def kept_where(self, mask: Array, x: Variable, otherwise: float = 0.0) -> Variable:
        """x where the mask holds, a constant elsewhere; nothing flows back from it."""

        def pull(bar: Array) -> None:
            self.add_to(x, np.where(mask, bar, 0.0).astype(bar.dtype))

        kept = np.where(mask, x.value, otherwise).astype(x.value.dtype)
        return self.record(kept, pull)

    def masked_exp(self, mask: Array, x: Variable) -> Variable:
        """e**x where the mask holds, 0 elsewhere, whatever x is there."""
        return self.kept_where(mask, self.exp(self.kept_where(mask, x, -np.inf)))

    def sum(self, x: Variable, axis: int) -> Variable:
        """The ascending sum over one axis."""

        def pull(bar: Array) -> None:
            bar = np.expand_dims(bar, axis)
            self.add_to(x, np.broadcast_to(bar, x.shape))

        return self.record(ascending_sum(self.arithmetic, x.value, axis), pull)

    def reshaped(self, x: Variable, *shape: int) -> Variable:
        """The same numbers in another shape."""

        def pull(bar: Array) -> None:
            self.add_to(x, bar.reshape(x.shape))

        return self.record(x.value.reshape(shape), pull)

    def matmul(self, products: MatrixProducts, x: Variable, y: Variable) -> Variable:
        """x y, [..., M, N] from [..., M, n] and [..., n, N]; so are its pullbacks."""

        def pull(bar: Array) -> None:
            self.add_to(x, products(bar, transposed(y.value)))
            self.add_to(y, products(transposed(x.value), bar))

        return self.record(products(x.value, y.value), pull)

    def running_sums(self, x: Variable) -> Variable:
        """The sums x_1 + .. + x_t over the last axis but one; back, those from t on."""

        def sums(terms: Array) -> Array:
            return running_sums(self.arithmetic, terms, "sequential")

        def pull(bar: Array) -> None:
            back = np.moveaxis(bar, -2, 0)[::-1]
            self.add_to(x, np.moveaxis(sums(back)[::-1], 0, -2))

        value = np.moveaxis(sums(np.moveaxis(x.value, -2, 0)), 0, -2)
        return self.record(value, pull)

    def swapped(self, x: Variable) -> Variable:
        """x with its last two axes swapped."""
        value = transposed(x.value)
        return self.record(value, lambda bar: self.add_to(x, transposed(bar)))

    def part(self, x: Variable, index: Any) -> Variable:
        """x[index] for a basic index: an integer, slices, an ellipsis."""

        def pull(bar: Array) -> None:
            if x.bar is None:
                x.bar = np.zeros(x.shape, x.value.dtype)
            elif not x.own:
                x.bar = x.bar.copy()
            x.own = True
            x.bar[index] = self.arithmetic.add(x.bar[index], bar)

        return self.record(x.value[index], pull)

    def joined(self, parts: Sequence[Variable], axis: int) -> Variable:
        """The parts one behind the other along an axis."""
        cuts = np.cumsum([part.shape[axis] for part in parts])[:-1]

        def pull(bar: Array) -> None:
            for part, piece in zip(parts, np.split(bar, cuts, axis), strict=True):
                self.add_to(part, piece)

        value = np.concatenate([part.value for part in parts], axis)
        return self.record(value, pull)

    def cast(self, fmt: Format | None, x: Variable) -> Variable:
        """x rounded into a format, and its cotangent too; None leaves both alone."""
        if fmt is None:
            return x

        def pull(bar: Array) -> None:
            self.add_to(x, self.arithmetic.cast(fmt, bar))

        return self.record(self.arithmetic.cast(fmt, x.value), pull)
