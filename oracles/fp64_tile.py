"""One tile of the fp64 scan: its arrays for the compiled loops, its tasks on all cores.

Compiled loops are compiled for C-ordered, writable arrays and for nothing else.
"""

import numpy as np
from numpy.typing import NDArray

from scancheck.ops.normal_form import Lowered
from scancheck.oracles.ball import Ball
from scancheck.oracles.fp64_scan import (
    PARTS,
    buffers,
    cotangent_tile,
    scan_tile,
    task_lanes,
)
from scancheck.oracles.numbers import plain
from scancheck.oracles.threads import share
from scancheck.oracles.tile_ball import DecayProduct, TimedRate

FloatArray = NDArray[np.float64]
Pair = tuple[FloatArray, FloatArray]  # values and radii


class TileScan:
    """Runs S_t = w_t S_{t-1} + k_t v_t^T over a tile and reads it out with r_t.

    state [PARTS, G, K, L] is replaced: S, its radius, M, W and V. o [2, G, ., L]
    receives the readout and its radius from step `place` on, states [2, T + 1, G, K, L]
    all S and radii when `keep`, and companions [3, G, all steps, L], unless it is
    empty, the readouts of M, W and V from step `start` on.
    """

    def __init__(
        self,
        lowered: Lowered,
        state: FloatArray,
        o: FloatArray,
        place: int,
        companions: FloatArray,
        start: int,
        *,
        keep: bool,
    ) -> None:
        _, *shape = state.shape
        self.groups, self.keys, self.lanes = shape
        self.steps = lowered.v.shape[1]
        self.width = task_lanes(self.groups, self.keys, self.lanes)
        w = lowered.w
        timed = isinstance(w, TimedRate) and w.raised
        apart = isinstance(w, DecayProduct) and not w.is_formed
        decays = w.factors if timed or apart else (w, None)
        self.inputs = (
            *_arrays(decays[0]),
            *_arrays(decays[1]),
            *_arrays(lowered.v[:, :, None, :]),
            *_arrays(lowered.k),
            *_arrays(lowered.r),
            timed,
            apart,
            lowered.k is not None,
            lowered.r is not None,
        )
        self.state = state
        self.states = np.empty((2, self.steps + 1 if keep else 0, *shape))
        if keep:
            self.states[:, 0] = state[:2]
        self.outputs = state, o, place, self.states, companions, start

    def run(self) -> None:
        """Fills o and states, and moves the state on."""
        tasks = self.groups * -(-self.lanes // self.width)
        share(tasks, self.steps * self.state.size // PARTS, self._tasks)

    def _tasks(self, begin: int, stop: int) -> None:
        rows = buffers(self.width, self.keys)
        scan_tile(begin, stop, self.width, *self.inputs, *self.outputs, *rows)


def cotangents_of_states(lowered: Lowered, obar: Ball, carry: Ball) -> FloatArray:
    """Carry out and G_1..G_T of a tile, values and radii, [2, T + 1, G, K, L]."""
    groups, keys, lanes = carry.shape
    steps = obar.shape[1]
    width = task_lanes(groups, keys, lanes)
    decays, readouts = _arrays(lowered.w), _arrays(lowered.r)
    bars = _arrays(obar[:, :, None, :])
    given = lowered.r is not None
    g = np.empty((2, steps + 1, groups, keys, lanes))
    g[0, steps], g[1, steps] = carry.components

    def run(begin: int, stop: int) -> None:
        rows, carried, _ = buffers(width, keys)
        inputs = *decays, *readouts, given, *bars
        cotangent_tile(begin, stop, width, *inputs, g, rows, carried)

    share(groups * -(-lanes // width), steps * carry.value.size, run)
    return g


def _arrays(x: Ball | None) -> Pair:
    """Both components; one repeated entry as [1, 1, 1, 1]."""
    if x is None:
        return np.ones((1, 1, 1, 1)), np.zeros((1, 1, 1, 1))
    value, radius = (_array(part) for part in x.components)
    return value, radius


def _array(part: FloatArray) -> FloatArray:
    if part.size and not any(part.strides):
        return np.full((1, 1, 1, 1), part.flat[0])
    return plain(part)
