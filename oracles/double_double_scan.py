"""Rung R2: the scan and its adjoint in double-double, as a System of the engine."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.ops.normal_form import Cotangents, Lowered
from scancheck.oracles import rank_one_steps
from scancheck.oracles.double_double import DoubleDouble, exact_double_double
from scancheck.oracles.double_double_tile import (
    BUFFER_SIZE,
    Parts,
    lane_block,
    scan_tile,
)
from scancheck.oracles.numbers import concatenate
from scancheck.oracles.systems import GenericSystem, check_diagonal
from scancheck.oracles.threads import share

FloatArray = NDArray[np.float64]


class DoubleDoubleSystem(GenericSystem):
    """The compiled double-double scan as a System of the engine.

    The state is a number [G, K, L]; kept states are a number [G, T + 1, K, L]. Another
    kind of number brings its own `constant` and `run`. Rank-one transitions are run
    step by step, errors carried `by_columns`, or entry by entry like GenericSystem's.
    """

    general = False
    by_columns = True

    def constant(self, values: FloatArray) -> Any:
        """Stored values as double-doubles of radius zero."""
        return exact_double_double(values)

    def run(
        self, w: Any, v: Any, k: Any, r: Any, state: Any, keep: bool
    ) -> tuple[Any, Any, Any]:
        """o [G, T, L], the last state [G, K, L], and all states where `keep`."""
        return _run(w, v, k, r, state, keep)

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[Any, Any, Any]:
        """o, the state after the tile, and all states of the tile when `keep`."""
        if lowered.p is not None and self.by_columns:
            return rank_one_steps.forward(lowered, state)
        if lowered.p is not None:
            return super().forward(lowered, state, start, total, keep)
        check_diagonal(lowered)
        o, state, states = self.run(
            lowered.w, lowered.v, lowered.k, lowered.r, state, keep
        )
        return o, state, states if keep else None

    def adjoint(
        self,
        lowered: Lowered,
        states: Any,
        obar: Any,
        carry: Any,
        start: int,
        total: int,
    ) -> tuple[Cotangents, Any]:
        """Cotangents of the tile: the same scan run backwards, then products.

        The carry into the last step has been decayed already, so that the decay of the
        reversed scan is 1 there and w_{t+1} at step t.
        """
        if lowered.p is not None and self.by_columns:
            return rank_one_steps.adjoint(lowered, states, obar, carry)
        if lowered.p is not None:
            return super().adjoint(lowered, states, obar, carry, start, total)
        w = lowered.w.broadcast_to((*obar.shape[:2], *lowered.w.shape[2:]))
        one = self.constant(np.ones((w.shape[0], 1, *w.shape[2:])))
        reversed_w = concatenate([one, w[:, :0:-1]], 1)
        r = lowered.r
        if r is not None and r.shape[1] > 1:
            r = r[:, ::-1]
        _, _, backwards = self.run(reversed_w, obar[:, ::-1], r, None, carry, True)
        g = backwards[:, :0:-1]
        bars = Cotangents(
            w=g * states[:, :-1],
            v=g[:, :, 0] if lowered.k is None else (lowered.k * g).sum(2),
            k=_over_lanes(g, lowered.v, lowered.k),
            r=_over_lanes(states[:, 1:], obar, lowered.r),
        )
        return bars, w[:, 0] * g[:, 0]


def _over_lanes(x: Any, lanes: Any, like: Any) -> Any:
    """x times a [G, T, L] factor; summed over lanes where `like` has one for all."""
    if like is None:
        return None
    product = x * lanes[:, :, None, :]
    return product.sum(3)[:, :, :, None] if like.shape[3] == 1 else product


def _run(
    w: Any, v: Any, k: Any, r: Any, state: Any, keep: bool
) -> tuple[DoubleDouble, DoubleDouble, DoubleDouble]:
    """o [G, T, L], the last state [G, K, L], and all states where `keep`."""
    groups, keys, lanes = state.shape
    steps = v.shape[1]
    moved = tuple(
        np.array(part, order="C").reshape(groups, 1, keys, lanes)
        for part in state.components
    )
    out = _empty(groups, steps, 1, lanes)
    states = _empty(groups, steps + 1 if keep else 0, keys, lanes)
    decay, value, key, readout = map(_contiguous, (w, v[:, :, None], k, r))
    has_k, has_r = k is not None, r is not None
    block = lane_block(groups, lanes)

    def run(begin: int, stop: int) -> None:
        scan_tile(
            begin,
            stop,
            block,
            decay,
            value,
            key,
            readout,
            has_k,
            has_r,
            moved,
            out,
            states,
            np.empty(BUFFER_SIZE),
        )

    share(groups * -(-lanes // block), steps * groups * keys * lanes, run)
    return (
        DoubleDouble(*out)[:, :, 0],
        DoubleDouble(*moved)[:, 0],
        DoubleDouble(*states),
    )


def _empty(*shape: int) -> Parts:
    """Three component arrays."""
    return tuple(np.empty(shape) for _ in range(3))


def _contiguous(number: Any) -> Parts:
    """Component arrays for the compiled scan; empty ones for an absent number.

    Axes along which entries are repeated in memory are passed with size 1.
    """
    if number is None:
        return _empty(0, 0, 0, 0)
    return tuple(_compact(part) for part in number.components)


def _compact(part: FloatArray) -> FloatArray:
    """The array without its repetitions, contiguous and writable."""
    index = tuple(slice(None) if stride else slice(1) for stride in part.strides)
    return np.require(part[index], requirements=("C", "W"))


__all__ = ["DoubleDoubleSystem"]
