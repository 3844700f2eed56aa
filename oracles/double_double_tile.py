"""The compiled double-double recurrence over a tile.

Work is cut into tasks, one per group and block of lanes, and a call runs the tasks
first..last of them: threads share the tasks. A task copies one row of lanes after the
other into a small buffer at fixed places, so that the compiler sees that rows never
overlap and vectorises the arithmetic.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.oracles.double_word import Triple, add, multiply
from scancheck.oracles.jit import jit

FloatArray = NDArray[np.float64]
Parts = tuple[FloatArray, ...]  # hi, lo and radius

# Without reference counts, which would cost more than the arithmetic: these functions
# allocate nothing, and Python holds their arrays.
BARE: dict[str, Any] = {"_nrt": False}

# Rows of the buffer: three components, each with room for the lanes of a task.
LANES = 64
ROW = 3 * LANES
DECAY, VALUE, KEY, READOUT, DRIVE, STATE, OUT = (i * ROW for i in range(7))
BUFFER_SIZE = 7 * ROW


@jit(**BARE, forceinline=True)
def _entry(buffer: FloatArray, row: int, i: int) -> Triple:
    """Entry i of a row."""
    return buffer[row + i], buffer[row + LANES + i], buffer[row + 2 * LANES + i]


@jit(**BARE, forceinline=True)
def _put(buffer: FloatArray, row: int, i: int, x: Triple) -> None:
    """x as entry i of a row."""
    buffer[row + i], buffer[row + LANES + i], buffer[row + 2 * LANES + i] = x


@jit(**BARE, forceinline=True)
def _multiply_rows(buffer: FloatArray, z: int, x: int, y: int, n: int) -> None:
    """Row z = row x * row y."""
    for i in range(n):
        product = multiply(*_entry(buffer, x, i), *_entry(buffer, y, i))
        _put(buffer, z, i, product)


@jit(**BARE, forceinline=True)
def _accumulate_rows(buffer: FloatArray, z: int, x: int, y: int, n: int) -> None:
    """Row z = row z + row x * row y."""
    for i in range(n):
        product = multiply(*_entry(buffer, x, i), *_entry(buffer, y, i))
        _put(buffer, z, i, add(*_entry(buffer, z, i), *product))


@jit(**BARE, forceinline=True)
def _advance(buffer: FloatArray, drive: int, n: int) -> None:
    """S = w S + drive."""
    for i in range(n):
        decayed = multiply(*_entry(buffer, DECAY, i), *_entry(buffer, STATE, i))
        _put(buffer, STATE, i, add(*decayed, *_entry(buffer, drive, i)))


@jit(**BARE, forceinline=True)
def _load_part(
    lanes: FloatArray, x: FloatArray, g: int, t: int, k: int, first: int
) -> None:
    """Lanes first.. of x[g, t, k]; sizes of 1 are repeated."""
    g = g if x.shape[0] > 1 else 0
    t = t if x.shape[1] > 1 else 0
    k = k if x.shape[2] > 1 else 0
    if x.shape[3] == 1:
        lanes[:] = x[g, t, k, 0]
    else:
        source = x[g, t, k, first : first + lanes.size]
        for i in range(lanes.size):
            lanes[i] = source[i]


@jit(**BARE)
def _load(
    row: FloatArray, x: Parts, g: int, t: int, k: int, first: int, n: int
) -> None:
    """The three components of n lanes of x[g, t, k] into a row."""
    _load_part(row[0, :n], x[0], g, t, k, first)
    _load_part(row[1, :n], x[1], g, t, k, first)
    _load_part(row[2, :n], x[2], g, t, k, first)


@jit(**BARE, forceinline=True)
def _store_part(
    lanes: FloatArray, x: FloatArray, g: int, t: int, k: int, first: int
) -> None:
    """Lanes first.. of x[g, t, k] from a row; indices of sizes of 1 are ignored."""
    t = t if x.shape[1] > 1 else 0
    k = k if x.shape[2] > 1 else 0
    target = x[g, t, k, first : first + lanes.size]
    for i in range(lanes.size):
        target[i] = lanes[i]


@jit(**BARE)
def _store(
    row: FloatArray, x: Parts, g: int, t: int, k: int, first: int, n: int
) -> None:
    """A row into n lanes of x[g, t, k]."""
    _store_part(row[0, :n], x[0], g, t, k, first)
    _store_part(row[1, :n], x[1], g, t, k, first)
    _store_part(row[2, :n], x[2], g, t, k, first)


@jit(**BARE)
def scan_tile(
    begin: int,
    stop: int,
    block: int,
    w: Parts,
    v: Parts,
    k: Parts,
    r: Parts,
    has_k: bool,
    has_r: bool,
    state: Parts,
    out: Parts,
    states: Parts,
    buffer: FloatArray,
) -> None:
    """Tasks of a tile: fills `out`, moves `state` on, keeps states if there is room.

    w, k, r [G, T, K, L] (sizes may be 1), v and out [G, T, 1, L], state [G, 1, K, L];
    states [G, T + 1, K, L], or of no steps when they are not wanted. `buffer` has
    BUFFER_SIZE entries.
    """
    keys, lanes = state[0].shape[2:]
    steps = v[0].shape[1]
    keep = states[0].shape[1] > 0
    blocks = -(-lanes // block)
    rows = buffer.reshape(7, 3, LANES)
    value, decay, key, readout, current, total = (
        rows[VALUE // ROW],
        rows[DECAY // ROW],
        rows[KEY // ROW],
        rows[READOUT // ROW],
        rows[STATE // ROW],
        rows[OUT // ROW],
    )
    for task in range(begin, stop):
        g, first = task // blocks, (task % blocks) * block
        n = min(block, lanes - first)
        for t in range(steps):
            _load(value, v, g, t, t, first, n)
            if has_r:
                total[:] = 0.0
            for i in range(keys):
                _load(decay, w, g, t, i, first, n)
                if keys > 1 or t == 0:
                    _load(current, state, g, t, i, first, n)
                if keep and t == 0:
                    _store(current, states, g, t, i, first, n)
                if has_k:
                    _load(key, k, g, t, i, first, n)
                    _multiply_rows(buffer, DRIVE, KEY, VALUE, n)
                    _advance(buffer, DRIVE, n)
                else:
                    _advance(buffer, VALUE, n)
                if keys > 1 or t == steps - 1:
                    _store(current, state, g, t, i, first, n)
                if keep:
                    _store(current, states, g, t + 1, i, first, n)
                if has_r:
                    _load(readout, r, g, t, i, first, n)
                    _accumulate_rows(buffer, OUT, READOUT, STATE, n)
            _store(total if has_r else current, out, g, t, t, first, n)


def lane_block(groups: int, lanes: int) -> int:
    """Lanes per task, at most LANES, so that there are two tasks where lanes allow."""
    half = -(-lanes // 2)
    wanted = lanes if groups > 1 else -(-half // 8) * 8
    return max(1, min(LANES, wanted))


__all__ = ["BUFFER_SIZE", "Parts", "lane_block", "scan_tile"]
