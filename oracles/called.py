"""Calls of several sequences: each is solved by itself, and all are put together.

That is what a packed, reversed or padded call means (scancheck.ops.calling): outputs
and states of the sequences side by side, zero at padding, and gradients alike, save
that an input which all sequences share sums theirs.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.ops.calling import Calling, Segment, plain, sizes_of
from scancheck.ops.normal_form import Op, spec_of, state_tensors
from scancheck.oracles.numbers import compact, concatenate

FloatArray = NDArray[np.float64]
Arrays = Mapping[str, FloatArray]
Solve = Callable[[Op, Arrays, Arrays | None], tuple[dict[str, Any], dict[str, Any]]]


class Call:
    """One call on its way through a solver of single sequences.

    `constant` makes numbers of exact values; `reduced(number, terms)` says what a sum
    of so many terms is, as the engine does for its tiles.
    """

    def __init__(
        self,
        op: Op,
        tensors: Arrays,
        constant: Callable[[FloatArray], Any],
        reduced: Callable[[Any, int], Any],
    ) -> None:
        assert op.calling is not None
        self.op, self.calling, self.tensors = op, op.calling, tensors
        self.constant, self.reduced = constant, reduced
        self.sizes = sizes_of(op, tensors)
        batch, steps = self.sizes["B"], self.sizes[op.time_axis]
        self.segments = self.calling.segments(batch, steps)

    def solved(
        self, solve: Solve, cotangents: Arrays | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Outputs and gradients of the call, by `solve` of each sequence."""
        op, bare = self.op, plain(self.op)
        found = []
        for segment in self.segments:
            tensors = {n: self.cut(n, x, segment) for n, x in self.tensors.items()}
            bars = None
            if cotangents is not None:
                bars = {n: self.cut(n, x, segment) for n, x in cotangents.items()}
            found.append(solve(bare, tensors, bars))
        outputs = {
            spec.name: self.joined(spec.name, spec.axes, [one[0] for one in found])
            for spec in op.outputs
        }
        if cotangents is None:
            return outputs, {}
        gradients = {}
        for name, values in self.tensors.items():
            axes = spec_of(op, name, values.ndim).axes
            gradients[name] = self.joined(name, axes, [one[1] for one in found])
        return outputs, gradients

    def cut(self, name: str, values: FloatArray, segment: Segment) -> FloatArray:
        """What a tensor holds of one sequence, its first step first."""
        axes = spec_of(self.op, name, values.ndim).axes
        index = [slice(None)] * values.ndim
        if name in state_tensors(self.op):
            index[0] = segment.states
        elif axes[0] == "B":
            index[0] = segment.rows
        if self.op.time_axis in axes:
            index[axes.index(self.op.time_axis)] = _tokens(self.calling, segment)
        return np.ascontiguousarray(values[tuple(index)])

    def joined(self, name: str, axes: tuple[str, ...], parts: list[Any]) -> Any:
        """One tensor of the call from those of the sequences."""
        op = self.op
        shape = tuple(self.sizes[axis] for axis in axes)
        pieces = [part[name] for part in parts]
        if not pieces:
            return self.constant(np.zeros(shape))
        if op.time_axis in axes:
            return self._in_time(axes, shape, pieces)
        if name in state_tensors(op):
            return concatenate(pieces, 0)
        total = pieces[0]
        for piece in pieces[1:]:
            total = total + piece
        return self.reduced(total, self.sizes[op.time_axis] * self.sizes["B"])

    def _in_time(
        self, axes: tuple[str, ...], shape: tuple[int, ...], pieces: list[Any]
    ) -> Any:
        """Sequences behind one another in each row, and zeros where there are none."""
        axis, steps = axes.index(self.op.time_axis), self.sizes[self.op.time_axis]
        if self.calling.reverse:
            back = (slice(None),) * axis + (slice(None, None, -1),)
            pieces = [piece[back].mapped(compact) for piece in pieces]
        if self.calling.cu_seqlens is not None:
            return concatenate(pieces, axis)
        rows = []
        for segment, piece in zip(self.segments, pieces, strict=True):
            parts = [piece]
            for before, missing in ((True, segment.first), (False, steps)):
                missing = missing if before else missing - segment.stop
                gap = list(piece.shape)
                gap[axis] = missing
                zeros = self.constant(np.zeros(gap))
                parts = [zeros, *parts] if before else [*parts, zeros]
            rows.append(concatenate(parts, axis))
        return concatenate(rows, 0) if rows else self.constant(np.zeros(shape))


def _tokens(calling: Calling, segment: Segment) -> slice:
    """The tokens of a sequence in the order of its steps."""
    first, stop = segment.first, segment.stop
    if not calling.reverse:
        return slice(first, stop)
    if first == stop:
        return slice(first, first)
    return slice(stop - 1, first - 1 if first else None, -1)
