"""Rung R2 on the card: double-doubles, their scan and its adjoint.

Operations are those of `double_word` and `double_word_functions`, one by one, so that
numbers and radii equal the CPU's to the bit. The one exception is log1p, which starts
from another library's value: it has the same bound.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from scancheck.oracles import cuda_card, double_double, double_word_functions
from scancheck.oracles.cuda_ball import is_repeated_zero, repeated_zeros
from scancheck.oracles.cuda_card import AXES
from scancheck.oracles.cuda_fp64 import key_ranges
from scancheck.oracles.double_double import DoubleDouble
from scancheck.oracles.double_double_scan import DoubleDoubleSystem

SOURCE = "double_double_scan.cu"
KEYS = 4  # states of a thread
STATE_AXES, LANE_AXES = (0, 2, 3), (0, 1, 3)  # of [G, K, L] and [G, T, L]

OPERATIONS: dict[Any, str] = {
    double_double._add_all: "Add",
    double_double._multiply_all: "Multiply",
    double_double._exp_all: "Exp",
    double_double._softplus_all: "Softplus",
    double_double._sigmoid_all: "Sigmoid",
    double_double._reciprocal_all: "Reciprocal",
}


class CudaDoubleDouble(DoubleDouble):
    """hi + lo and a radius on the card."""

    __slots__ = ()

    @property
    def whole(self) -> Any:
        """Itself: a tile of all steps is kept, not copied."""
        return self

    @property
    def single(self) -> bool:
        """Whether it is exact float64: lo and radius the one zero that is repeated."""
        return all(map(is_repeated_zero, self.components[1:]))

    @property
    def parts(self) -> tuple[Any, Any, Any]:
        """The components; None for those that are zero."""
        hi, lo, radius = self.components
        return (hi, None, None) if self.single else (hi, lo, radius)

    def mapped(self, move: Callable[[Any], Any]) -> Any:
        """`move` applied to every component; exact float64 stay so."""
        hi = move(self.hi)
        if self.single:
            nothing = repeated_zeros(hi.shape)
            return self.like(hi, nothing, nothing)
        return self.like(hi, move(self.lo), move(self.radius))

    def transpose(self, *axes: int) -> Any:
        """The axes permuted in memory too, so that neighbours stay neighbours."""
        return self.mapped(lambda part: part.transpose(*axes).copy())

    def exactly(self, values: Any) -> Any:
        """Stored values, known exactly, moved to the card unless they are there."""
        return exact_cuda_double_double(values)

    def nothing(self, shape: tuple[int, ...]) -> Any:
        """The zero that exact numbers repeat."""
        return repeated_zeros(shape)

    def _one(self) -> Any:
        return self.exactly(np.ones(())).broadcast_to(self.shape)

    def _elementwise(self, loop: Callable[..., None], *others: Any) -> Any:
        """The kernel of a compiled loop on this number and others, broadcast."""
        shape = np.broadcast_shapes(self.shape, *(other.shape for other in others))
        if len(shape) > AXES:
            return cuda_card.in_few_axes(
                lambda x, *rest: x._elementwise(loop, *rest), (self, *others), shape
            )
        xp = cuda_card.arrays()
        out = xp.empty((3, *shape))
        full = (1,) * (AXES - len(shape)) + shape
        cuda_card.launch(
            "double_double_elementwise.cu",
            f"elementwise<{OPERATIONS[loop]}>",
            out[0].size,
            [
                *(_operand(x) for x in (self, *others, self)[:2]),
                cuda_card.room(out, range(AXES - len(shape), AXES)),
                cuda_card.count(*full),
                cuda_card.pointer(_tables(xp, cuda_card.device_index())),
            ],
        )
        return self.like(*out)


def _operand(x: CudaDoubleDouble) -> cuda_card.Argument:
    return cuda_card.operand(x.parts, range(AXES - len(x.shape), AXES))


@cache
def _tables(xp: Any, device: int) -> Any:
    """The tables of `double_word_functions` in one row, as the sources expect them."""
    functions = double_word_functions
    tables = functions.COARSE, functions.FINE, functions.LOG1P, functions.SCALES
    return xp.asarray(np.concatenate([table.reshape(-1) for table in tables]))


def exact_cuda_double_double(values: Any) -> CudaDoubleDouble:
    """Stored values, known exactly, moved to the card unless they are there."""
    moved = cuda_card.float64(values)
    nothing = repeated_zeros(moved.shape)
    return CudaDoubleDouble(moved, nothing, nothing)


class CudaDoubleDoubleSystem(DoubleDoubleSystem):
    """The double-double scan on the card."""

    def constant(self, values: Any) -> CudaDoubleDouble:
        """Stored values as double-doubles of radius zero."""
        return exact_cuda_double_double(values)

    def run(
        self, w: Any, v: Any, k: Any, r: Any, state: Any, keep: bool
    ) -> tuple[Any, Any, Any]:
        """o [G, T, L], the last state [G, K, L], and all states where `keep`."""
        groups, keys, lanes = state.shape
        steps = v.shape[1]
        xp = cuda_card.arrays()
        moved, out = xp.stack(state.components), xp.empty((3, groups, steps, lanes))
        states = xp.empty((3, groups, steps + 1, keys, lanes)) if keep else None
        if states is not None:
            states[:, :, 0] = moved
        shape = cuda_card.count(groups, steps, keys, lanes)
        value = cuda_card.operand(v.parts, LANE_AXES)
        rooms = cuda_card.room(moved, STATE_AXES), cuda_card.room(out, LANE_AXES)
        if k is None and r is None and states is None:
            single = w.single and v.single
            name = "scan_lanes<true, 16>" if single else "scan_lanes<false, 4>"
            arguments = [_tile(w), value, *rooms, shape]
            cuda_card.launch(SOURCE, name, groups * lanes, arguments)
        else:
            kept = cuda_card.room((None,) * 3 if states is None else states[:, :, 1:])
            given = ", ".join(str(x is not None).lower() for x in (k, r))
            operands = [_tile(w), value, _tile(k), _tile(r), *rooms, kept, shape]
            for first, some in key_ranges(keys, KEYS):
                cuda_card.launch(
                    SOURCE,
                    f"scan_keys<{some}, {given}>",
                    groups * lanes,
                    [*operands, cuda_card.count(first)],
                )
        number = CudaDoubleDouble
        return number(*out), number(*moved), None if states is None else number(*states)


def _tile(x: CudaDoubleDouble | None) -> cuda_card.Argument:
    """A number [G, T, K, L] of the tile."""
    return cuda_card.operand((None,) * 3 if x is None else x.parts)


__all__ = ["CudaDoubleDouble", "CudaDoubleDoubleSystem", "exact_cuda_double_double"]
