"""The compiled loops of the fp64 ball scan: tiles forward and cotangents back.

Arrays of a tile are [G, T, K, L] with sizes of 1 that repeat. Work is cut into tasks,
one per group and range of lanes, and a call runs the tasks first..last of them: threads
share the tasks, which needs no parallel compilation.

All arithmetic is done on rows of LANES lanes, a whole row each time, at fixed places of
small buffers: so the compiler knows how long loops are and that rows do not overlap,
and vectorises. What lies beyond the lanes of a task is computed too and never stored.
"""

import numpy as np
from numpy.typing import NDArray

from scancheck.oracles.jit import NO_ALLOCATION, jit
from scancheck.oracles.units import FLOOR, U64

FloatArray = NDArray[np.float64]

LANES = 32
# A state, and what is read out of it: rows of S, its radius, M, W and V.
PARTS = 5
RADIUS, M, W, V = (i * LANES for i in range(1, PARTS))
# Rows of the other buffer: values with their radii, and a readout.
DECAY, VALUE, KEY, READOUT, DRIVE, OUT = (i * 2 * LANES for i in range(6))
ROWS = OUT + PARTS * LANES
# State entries of one task: as many as stay in a core's second cache.
TASK_ENTRIES = 2**14


def task_lanes(groups: int, keys: int, lanes: int) -> int:
    """Lanes per task, so that at least two tasks exist where there are lanes for it."""
    width = max(1, TASK_ENTRIES // (max(1, keys) * LANES)) * LANES
    if groups < 2:
        half = -(-lanes // 2)
        width = min(width, -(-half // 8) * 8)
    return max(1, min(width, lanes))


def buffers(width: int, keys: int) -> tuple[FloatArray, FloatArray]:
    """Rows, and the states of a task [pieces of LANES lanes, K, PARTS x LANES].

    They are filled with a number that arithmetic is fast on, as it is not on subnormal
    ones: lanes beyond those of the task keep it.
    """
    pieces = -(-width // LANES)
    return np.full(ROWS, 0.5), np.full((pieces, keys, PARTS * LANES), 0.5)


@jit(forceinline=True, **NO_ALLOCATION)
def _load(rows, place, x, g, t, k, first, n):
    """Puts n lanes of x[g, t, k] at a place; sizes of 1 are repeated."""
    g = g if x.shape[0] > 1 else 0
    t = t if x.shape[1] > 1 else 0
    k = k if x.shape[2] > 1 else 0
    if x.shape[3] == 1:
        one = x[g, t, k, 0]
        for i in range(LANES):
            rows[place + i] = one
    else:
        _copy(rows[place : place + n], x[g, t, k, first : first + n])


@jit(forceinline=True, **NO_ALLOCATION)
def _copy(target, source):
    """Copies a row."""
    for i in range(target.size):
        target[i] = source[i]


@jit(**NO_ALLOCATION)
def _drive(rows):
    """x = k v and its radius."""
    for i in range(LANES):
        k, rk = rows[KEY + i], rows[KEY + RADIUS + i]
        v, rv = rows[VALUE + i], rows[VALUE + RADIUS + i]
        x = k * v
        rows[DRIVE + i] = x
        rows[DRIVE + RADIUS + i] = (
            abs(k) * rv + rk * (abs(v) + rv) + (U64 * abs(x) + FLOOR)
        )


@jit(**NO_ALLOCATION)
def _step(rows, state):
    """S <- w S + x with its radius, then M, W and V one step further."""
    for i in range(LANES):
        w, rw = rows[DECAY + i], rows[DECAY + RADIUS + i]
        x, rx = rows[DRIVE + i], rows[DRIVE + RADIUS + i]
        old, r, m = state[i], state[RADIUS + i], state[M + i]
        size, kept = abs(w), w * old
        new = kept + x
        state[i] = new
        state[RADIUS + i] = (
            size * r + rw * (abs(old) + r) + rx + (U64 * (abs(kept) + abs(new)) + FLOOR)
        )
        state[W + i] = size * (state[W + i] + m)
        state[M + i] = size * m + abs(x)
        state[V + i] = w * w * state[V + i] + kept * kept + new * new


@jit(**NO_ALLOCATION)
def _read(rows, state, terms):
    """Adds c S and the readouts of the companions to OUT.

    `terms` is the number of summands, for the roundings of the sum.
    """
    for i in range(LANES):
        c, rc = rows[READOUT + i], rows[READOUT + RADIUS + i]
        s, r = state[i], state[RADIUS + i]
        size, product = abs(c), c * s
        rows[OUT + i] += product
        rows[OUT + RADIUS + i] += (
            size * r + rc * (abs(s) + r) + ((terms + 1) * U64 * abs(product) + FLOOR)
        )
        rows[OUT + M + i] += size * state[M + i]
        rows[OUT + W + i] += size * state[W + i]
        rows[OUT + V + i] += c * c * state[V + i]


@jit(**NO_ALLOCATION)
def scan_tile(
    begin,
    stop,
    width,
    span,
    origin,
    w,
    rw,
    v,
    rv,
    k,
    rk,
    r,
    rr,
    has_k,
    has_r,
    state,
    o,
    states,
    companions,
    start,
    rows,
    carried,
):
    """Runs the tasks begin..stop of a tile, `width` lanes each; `state` is replaced.

    span: the steps to run, first and last + 1. w and rw begin at group, step and lane
    `origin`. state [PARTS, G, K, L]; o [2, G, T, L] receives the readout and its
    radius; states [2, T + 1, G, K, L] every S and radius but the first, and companions
    [3, G, all steps, L] the readouts of M, W and V from step `start` on: unless they
    are empty. rows and carried are those of `buffers`.
    """
    _, groups, keys, lanes = state.shape
    blocks = -(-lanes // width)
    keep = states.shape[1] > 0
    value = VALUE if has_k else DRIVE
    for task in range(begin, stop):
        g, left = task // blocks, (task % blocks) * width
        right = min(lanes, left + width)
        for piece, first in enumerate(range(left, right, LANES)):
            last = min(right, first + LANES)
            for i in range(keys):
                for j in range(PARTS):
                    row = carried[piece, i, j * LANES : j * LANES + last - first]
                    _copy(row, state[j, g, i, first:last])
        for t in range(span[0], span[1]):
            for piece, first in enumerate(range(left, right, LANES)):
                last = min(right, first + LANES)
                n = last - first
                _load(rows, value, v, g, t, 0, first, n)
                _load(rows, value + RADIUS, rv, g, t, 0, first, n)
                for i in range(PARTS * LANES):
                    rows[OUT + i] = 0.0
                for i in range(keys):
                    s = carried[piece, i]
                    at = g - origin[0], t - origin[1], i, first - origin[2]
                    _load(rows, DECAY, w, *at, n)
                    _load(rows, DECAY + RADIUS, rw, *at, n)
                    if has_k:
                        _load(rows, KEY, k, g, t, i, first, n)
                        _load(rows, KEY + RADIUS, rk, g, t, i, first, n)
                        _drive(rows)
                    _step(rows, s)
                    if keep:
                        for j in range(2):
                            row = s[j * LANES : j * LANES + n]
                            _copy(states[j, t + 1, g, i, first:last], row)
                    if has_r:
                        _load(rows, READOUT, r, g, t, i, first, n)
                        _load(rows, READOUT + RADIUS, rr, g, t, i, first, n)
                        _read(rows, s, keys)
                out = rows[OUT:] if has_r else carried[piece, 0]
                for j in range(2):
                    row = out[j * LANES : j * LANES + n]
                    _copy(o[j, g, t, first:last], row)
                if companions.shape[2] > 0:
                    for j in range(3):
                        row = out[(2 + j) * LANES : (2 + j) * LANES + n]
                        _copy(companions[j, g, start + t, first:last], row)
        for piece, first in enumerate(range(left, right, LANES)):
            last = min(right, first + LANES)
            for i in range(keys):
                for j in range(PARTS):
                    row = carried[piece, i, j * LANES : j * LANES + last - first]
                    _copy(state[j, g, i, first:last], row)


@jit(**NO_ALLOCATION)
def _turn(rows, carry):
    """G = carry + y in OUT, and the next carry w G."""
    for i in range(LANES):
        w, rw = rows[DECAY + i], rows[DECAY + RADIUS + i]
        total = carry[i] + rows[DRIVE + i]
        radius = carry[RADIUS + i] + rows[DRIVE + RADIUS + i] + U64 * abs(total)
        product = w * total
        rows[OUT + i], rows[OUT + RADIUS + i] = total, radius
        carry[i] = product
        carry[RADIUS + i] = (
            abs(w) * radius + rw * (abs(total) + radius) + (U64 * abs(product) + FLOOR)
        )


@jit(**NO_ALLOCATION)
def cotangent_tile(
    begin, stop, width, w, rw, r, rr, has_r, obar, robar, g, rows, carried
):
    """Runs the tasks begin..stop of a tile's adjoint.

    g [2, T + 1, G, K, L] holds the carry of the tile in its last entry, values and
    radii. On return entry t + 1 holds G_t = r_t obar_t^T + (carry into t), and entry 0
    the carry out.
    """
    _, _, groups, keys, lanes = g.shape
    steps = obar.shape[1]
    blocks = -(-lanes // width)
    bar = VALUE if has_r else DRIVE
    for task in range(begin, stop):
        group, left = task // blocks, (task % blocks) * width
        right = min(lanes, left + width)
        for piece, first in enumerate(range(left, right, LANES)):
            last = min(right, first + LANES)
            for i in range(keys):
                for j in range(2):
                    row = carried[piece, i, j * LANES : j * LANES + last - first]
                    _copy(row, g[j, steps, group, i, first:last])
        for back in range(steps):
            t = steps - 1 - back
            for piece, first in enumerate(range(left, right, LANES)):
                last = min(right, first + LANES)
                n = last - first
                _load(rows, bar, obar, group, t, 0, first, n)
                _load(rows, bar + RADIUS, robar, group, t, 0, first, n)
                for i in range(keys):
                    if has_r:
                        _load(rows, KEY, r, group, t, i, first, n)
                        _load(rows, KEY + RADIUS, rr, group, t, i, first, n)
                        _drive(rows)
                    _load(rows, DECAY, w, group, t, i, first, n)
                    _load(rows, DECAY + RADIUS, rw, group, t, i, first, n)
                    _turn(rows, carried[piece, i])
                    for j in range(2):
                        row = rows[OUT + j * LANES : OUT + j * LANES + n]
                        _copy(g[j, t + 1, group, i, first:last], row)
        for piece, first in enumerate(range(left, right, LANES)):
            last = min(right, first + LANES)
            for i in range(keys):
                for j in range(2):
                    row = carried[piece, i, j * LANES : j * LANES + last - first]
                    _copy(g[j, 0, group, i, first:last], row)
