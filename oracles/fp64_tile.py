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
from scancheck.oracles.tile_ball import PART_LANES, OuterProduct, part_steps

FloatArray = NDArray[np.float64]
Pair = tuple[FloatArray, FloatArray]  # values and radii


class TileScan:
    """Runs S_t = w_t S_{t-1} + k_t v_t^T over a tile and reads it out with r_t.

    state [PARTS, G, K, L] is replaced: S, its radius, M, W and V. o [2, G, T, L]
    receives the readout and its radius, states [2, T + 1, G, K, L] all S and radii when
    `keep`, and companions [3, G, all steps, L], unless it is empty, the readouts of M,
    W and V from step `start` on.
    """

    def __init__(
        self,
        lowered: Lowered,
        state: FloatArray,
        companions: FloatArray,
        start: int,
        *,
        keep: bool,
    ) -> None:
        _, *shape = state.shape
        self.groups, self.keys, self.lanes = shape
        self.steps = lowered.v.shape[1]
        self.width = task_lanes(self.groups, self.keys, self.lanes)
        self.decay = lowered.w
        if isinstance(self.decay, OuterProduct):
            self.width = min(self.width, PART_LANES)
        self.inputs = (
            *_arrays(lowered.v[:, :, None, :]),
            *_arrays(lowered.k),
            *_arrays(lowered.r),
            lowered.k is not None,
            lowered.r is not None,
        )
        self.state = state
        self.o = np.empty((2, self.groups, self.steps, self.lanes))
        self.states = np.empty((2, self.steps + 1 if keep else 0, *shape))
        if keep:
            self.states[:, 0] = state[:2]
        self.outputs = state, self.o, self.states, companions, start

    def run(self) -> None:
        """Fills o and states, and moves the state on."""
        tasks = self.groups * -(-self.lanes // self.width)
        work = self.steps * self.state.size // PARTS
        if isinstance(self.decay, OuterProduct):
            share(tasks, work, self._by_parts)
            return
        whole, origin = (0, self.steps), (0, 0, 0)
        decays = _arrays(self.decay)
        share(tasks, work, lambda *tasks: self._scan(tasks, whole, origin, decays))

    def _scan(
        self,
        tasks: tuple[int, int],
        span: tuple[int, int],
        origin: tuple[int, int, int],
        decays: Pair,
    ) -> None:
        """Some tasks over a span of steps, with decays that begin at `origin`."""
        rows = buffers(self.width, self.keys)
        places = *tasks, self.width, span, origin
        scan_tile(*places, *decays, *self.inputs, *self.outputs, *rows)

    def _by_parts(self, begin: int, stop: int) -> None:
        """Some tasks, forming the decays of each for a few steps at a time."""
        blocks = -(-self.lanes // self.width)
        stride = part_steps(self.keys, self.width)
        for task in range(begin, stop):
            g, first = task // blocks, task % blocks * self.width
            last = min(self.lanes, first + self.width)
            for t in range(0, self.steps, stride):
                span = t, min(self.steps, t + stride)
                part = self.decay.part(g, *span, first, last)
                self._scan((task, task + 1), span, (g, t, first), part)


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
        rows = buffers(width, keys)
        cotangent_tile(begin, stop, width, *decays, *readouts, given, *bars, g, *rows)

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
