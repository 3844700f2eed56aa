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

from scancheck.oracles.fma import fma
from scancheck.oracles.fp64_exp import exp_with_radius
from scancheck.oracles.jit import NO_ALLOCATION, jit
from scancheck.oracles.units import FLOOR, TINY, U64

FloatArray = NDArray[np.float64]

LANES = 32
LINE = 64  # bytes of a cache line
# Places of rows. They are NumPy integers, as Numba compiles a function that is called
# with literal ones anew for each of them.
# A state, and what is read out of it: rows of S, its radius, M, W and V.
PARTS = 5
RADIUS, M, W, V = (np.int64(i * LANES) for i in range(1, PARTS))
# Rows of the other buffer: values with their radii, and a readout. FACTOR is that of a
# decay that all keys share: a time, or the decay of values.
DECAY, VALUE, KEY, READOUT, DRIVE, FACTOR, OUT = (
    np.int64(i * 2 * LANES) for i in range(7)
)
ROWS = int(OUT) + PARTS * LANES
FIRST = np.int64(0)
REACH = 2 * RADIUS  # of a rate: |value| + radius
# State entries of a task: few enough for a core's cache, enough for long rows; and
# tasks to aim for, so that each core finds work.
MOST_ENTRIES, LEAST_ENTRIES, TASKS = 2**14, 2**9, 8


def task_lanes(groups: int, keys: int, lanes: int) -> int:
    """Lanes per task, a multiple of LANES."""
    least, most = LEAST_ENTRIES // max(1, keys), MOST_ENTRIES // max(1, keys)
    width = max(least, min(most, groups * lanes // TASKS))
    return max(LANES, width // LANES * LANES)


def buffers(width: int, keys: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Rows, and states and rates of a task, [pieces of LANES lanes, K, their rows].

    They are filled with a number that arithmetic is fast on, as it is not on subnormal
    ones: lanes beyond those of the task keep it.
    """
    pieces = -(-width // LANES)
    return (
        aligned(ROWS),
        aligned(pieces, keys, PARTS * LANES),
        aligned(pieces, keys, 3 * LANES),
    )


def aligned(*shape: int) -> FloatArray:
    """An array of 0.5 that starts a cache line, so that no vector of a row crosses one.

    Rows and their places are multiples of a line.
    """
    size = int(np.prod(shape))
    whole = np.full(size + LINE // 8, 0.5)
    first = -whole.ctypes.data % LINE // 8
    return whole[first : first + size].reshape(shape)


@jit(forceinline=True, **NO_ALLOCATION)
def _copy(target, source):
    """Copies a row."""
    for i in range(target.size):
        target[i] = source[i]


@jit(forceinline=True, **NO_ALLOCATION)
def _lane(x, g, t, k):
    """The first lane of x[g, t, k]; sizes of 1 are repeated."""
    g = g if x.shape[0] > 1 else 0
    t = t if x.shape[1] > 1 else 0
    k = k if x.shape[2] > 1 else 0
    return x[g, t, k, 0]


@jit(forceinline=True, **NO_ALLOCATION)
def _load_part(rows, place, x, g, t, k, first, n):
    """Puts n lanes of x[g, t, k] at a place; sizes of 1 are repeated."""
    if x.shape[3] == 1:
        one = _lane(x, g, t, k)
        for i in range(LANES):
            rows[place + i] = one
    else:
        g = g if x.shape[0] > 1 else 0
        t = t if x.shape[1] > 1 else 0
        k = k if x.shape[2] > 1 else 0
        _copy(rows[place : place + n], x[g, t, k, first : first + n])


@jit(forceinline=True, **NO_ALLOCATION)
def _load(rows, place, x, rx, g, t, k, first, n):
    """Puts n lanes of x[g, t, k] and their radii at a place."""
    _load_part(rows, place, x, g, t, k, first, n)
    _load_part(rows, place + RADIUS, rx, g, t, k, first, n)


@jit(forceinline=True, **NO_ALLOCATION)
def _gain_and_loss(c, rc, roundings):
    """What c makes of a radius r and a value x: c x has radius gain r + loss |x|.

    That is |c| r + rc (|x| + r) + u |c x| for each rounding. TINY stands for a loss
    that underflows but would not once times a large value.
    """
    size = abs(c)
    return size + rc, rc + (roundings * U64 * size + TINY)


@jit(forceinline=True, **NO_ALLOCATION)
def _drive_one(rows, i, k, gain, loss):
    """x = k v and its radius, in lane i."""
    v = rows[VALUE + i]
    rows[DRIVE + i] = k * v
    rv = rows[VALUE + RADIUS + i]
    rows[DRIVE + RADIUS + i] = fma(gain, rv, loss * abs(v) + FLOOR)


@jit(forceinline=True, **NO_ALLOCATION)
def _step_one(rows, state, i, w, rw):
    """S <- w S + x with its radius, then M, W and V one step further, in lane i."""
    x, rx = rows[DRIVE + i], rows[DRIVE + RADIUS + i]
    old, r, m = state[i], state[RADIUS + i], state[M + i]
    size, kept = abs(w), w * old
    new = kept + x
    state[i] = new
    rounding = U64 * (abs(kept) + abs(new)) + (rx + FLOOR)
    state[RADIUS + i] = fma(size, r, fma(rw, abs(old) + r, rounding))
    state[W + i] = size * (state[W + i] + m)
    state[M + i] = fma(size, m, abs(x))
    state[V + i] = fma(w * w, state[V + i], fma(kept, kept, new * new))


@jit(forceinline=True, **NO_ALLOCATION)
def _read_one(rows, state, i, c, gain, loss):
    """Adds c S, its radius and the readouts of the companions to OUT, in lane i."""
    s, size = state[i], abs(c)
    rows[OUT + i] = fma(c, s, rows[OUT + i])
    radius = fma(loss, abs(s), rows[OUT + RADIUS + i])
    rows[OUT + RADIUS + i] = fma(gain, state[RADIUS + i], radius)
    rows[OUT + M + i] = fma(size, state[M + i], rows[OUT + M + i])
    rows[OUT + W + i] = fma(size, state[W + i], rows[OUT + W + i])
    rows[OUT + V + i] = fma(c * c, state[V + i], rows[OUT + V + i])


@jit(**NO_ALLOCATION)
def _drive(rows):
    """x = k v, a key for each lane."""
    for i in range(LANES):
        k, rk = rows[KEY + i], rows[KEY + RADIUS + i]
        _drive_one(rows, i, k, *_gain_and_loss(k, rk, 1.0))


@jit(**NO_ALLOCATION)
def _drive_alike(rows, k, rk):
    """x = k v, one key for all lanes."""
    gain, loss = _gain_and_loss(k, rk, 1.0)
    for i in range(LANES):
        _drive_one(rows, i, k, gain, loss)


@jit(**NO_ALLOCATION)
def _decay(rows, rate):
    """w = exp(time rate) and its radius."""
    for i in range(LANES):
        x, rx = rows[FACTOR + i], rows[FACTOR + RADIUS + i]
        y, ry, reach = rate[i], rate[RADIUS + i], rate[REACH + i]
        z = x * y
        rz = fma(abs(x), ry, fma(rx, reach, U64 * abs(z) + FLOOR))
        w, rw = exp_with_radius(z, rz)
        rows[DECAY + i], rows[DECAY + RADIUS + i] = w, rw


@jit(**NO_ALLOCATION)
def _decay_by_key(rows, w, rw):
    """w z and its radius, one w for all lanes and z in FACTOR."""
    size = abs(w)
    for i in range(LANES):
        z, rz = rows[FACTOR + i], rows[FACTOR + RADIUS + i]
        product = w * z
        rounding = U64 * abs(product) + FLOOR
        rows[DECAY + i] = product
        rows[DECAY + RADIUS + i] = fma(size, rz, fma(rw, abs(z) + rz, rounding))


@jit(**NO_ALLOCATION)
def _step(rows, state):
    """S <- w S + x, a decay for each lane."""
    for i in range(LANES):
        _step_one(rows, state, i, rows[DECAY + i], rows[DECAY + RADIUS + i])


@jit(**NO_ALLOCATION)
def _step_alike(rows, state, w, rw):
    """S <- w S + x, one decay for all lanes."""
    for i in range(LANES):
        _step_one(rows, state, i, w, rw)


@jit(**NO_ALLOCATION)
def _read(rows, state, terms):
    """Adds c S to a sum of so many terms, a readout for each lane."""
    for i in range(LANES):
        c, rc = rows[READOUT + i], rows[READOUT + RADIUS + i]
        _read_one(rows, state, i, c, *_gain_and_loss(c, rc, terms + 1.0))


@jit(**NO_ALLOCATION)
def _read_alike(rows, state, terms, c, rc):
    """Adds c S to a sum of so many terms, one readout for all lanes."""
    gain, loss = _gain_and_loss(c, rc, terms + 1.0)
    for i in range(LANES):
        _read_one(rows, state, i, c, gain, loss)


@jit(**NO_ALLOCATION)
def scan_tile(
    begin,
    stop,
    width,
    w,
    rw,
    other,
    r_other,
    v,
    rv,
    k,
    rk,
    r,
    rr,
    is_time,
    has_z,
    has_k,
    has_r,
    state,
    o,
    place,
    states,
    companions,
    start,
    rows,
    carried,
    rates,
):
    """Runs the tasks begin..stop of a tile, `width` lanes each; `state` is replaced.

    Where is_time, w [G, T, 1, L] is a time and the decay exp(w rate), with the other
    array [G, 1, K, L] as its rate. Where has_z, the decay is w [G, T, K, 1] times the
    other one, [G, T, 1, L]. state [PARTS, G, K, L]; o [2, G, ., L] receives the readout
    and its radius from step `place` on; states [2, T + 1, G, K, L] every S and radius
    but the first, and companions [3, G, all steps, L] the readouts of M, W and V from
    step `start` on: unless they are empty. rows, carried and rates are those of
    `buffers`.
    """
    _, groups, keys, lanes = state.shape
    blocks = -(-lanes // width)
    keep = states.shape[1] > 0
    k_alike = k.shape[3] == 1 and rk.shape[3] == 1
    w_alike = w.shape[3] == 1 and rw.shape[3] == 1 and not (is_time or has_z)
    r_alike = r.shape[3] == 1 and rr.shape[3] == 1
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
        if is_time:
            for piece, first in enumerate(range(left, right, LANES)):
                n = min(right, first + LANES) - first
                for i in range(keys):
                    row = rates[piece, i]
                    _load(row, FIRST, other, r_other, g, FIRST, i, first, n)
                    for lane in range(LANES):
                        row[REACH + lane] = abs(row[lane]) + row[RADIUS + lane]
        for t in range(v.shape[1]):
            for piece, first in enumerate(range(left, right, LANES)):
                last = min(right, first + LANES)
                n = last - first
                _load(rows, value, v, rv, g, t, FIRST, first, n)
                if is_time:
                    _load(rows, FACTOR, w, rw, g, t, FIRST, first, n)
                if has_z:
                    _load(rows, FACTOR, other, r_other, g, t, FIRST, first, n)
                if has_r:
                    for i in range(PARTS * LANES):
                        rows[OUT + i] = 0.0
                    for i in range(LANES):
                        rows[OUT + RADIUS + i] = keys * FLOOR
                for i in range(keys):
                    s = carried[piece, i]
                    if has_k and k_alike:
                        _drive_alike(rows, _lane(k, g, t, i), _lane(rk, g, t, i))
                    elif has_k:
                        _load(rows, KEY, k, rk, g, t, i, first, n)
                        _drive(rows)
                    if w_alike:
                        _step_alike(rows, s, _lane(w, g, t, i), _lane(rw, g, t, i))
                    elif is_time:
                        _decay(rows, rates[piece, i])
                        _step(rows, s)
                    elif has_z:
                        _decay_by_key(rows, _lane(w, g, t, i), _lane(rw, g, t, i))
                        _step(rows, s)
                    else:
                        _load(rows, DECAY, w, rw, g, t, i, first, n)
                        _step(rows, s)
                    if keep:
                        for j in range(2):
                            row = s[j * LANES : j * LANES + n]
                            _copy(states[j, t + 1, g, i, first:last], row)
                    if has_r and r_alike:
                        c, rc = _lane(r, g, t, i), _lane(rr, g, t, i)
                        _read_alike(rows, s, keys, c, rc)
                    elif has_r:
                        _load(rows, READOUT, r, rr, g, t, i, first, n)
                        _read(rows, s, keys)
                out = rows[OUT:] if has_r else carried[piece, 0]
                for j in range(2):
                    row = out[j * LANES : j * LANES + n]
                    _copy(o[j, g, place + t, first:last], row)
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
        rounding = U64 * abs(product) + FLOOR
        carry[RADIUS + i] = fma(abs(w), radius, fma(rw, abs(total) + radius, rounding))


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
                _load(rows, bar, obar, robar, group, t, FIRST, first, n)
                for i in range(keys):
                    if has_r:
                        _load(rows, KEY, r, rr, group, t, i, first, n)
                        _drive(rows)
                    _load(rows, DECAY, w, rw, group, t, i, first, n)
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
