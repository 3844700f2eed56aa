"""The forward loop of `error_tile` over rows of lanes, for uncompensated kernels.

`error_scan` has the components and formulas, and every number that comes out is the
same. But one step moves a row of LANES entries at fixed places of small buffers, so
that the compiler vectorises, and k v^T is formed where it is used: over a tile it has
as many entries as all states, and would pass through memory several times.

Peaks are joined by `higher`, one instruction. It may lose what is not a number; but a
state's components, once no numbers, stay so, and so do sums over keys: PEAK is then
found in the end, or from the sums.
"""

import numpy as np

from scancheck.bounds.error_scan import (
    ADD_ETA,
    ADDS,
    COMPONENTS,
    ERROR,
    ETA,
    FLOOR,
    FMA,
    GROWN,
    GROWTH,
    PEAK,
    PRODUCTS,
    REACH,
    SIZE,
    SPAN,
    STATE_ETA,
    STATE_LARGEST,
    STATE_U,
    STEP_U,
    STEPS,
    STORED,
    TOP,
    TREES,
    VALUE,
    U,
)
from scancheck.oracles.jit import NO_ALLOCATION, jit

LANES = 32
# Components that move, as places of rows in an entry of the state.
CARRIED = (VALUE, SIZE, ERROR, STORED, FLOOR, TOP, REACH, SPAN, PEAK)
STATE_ROW = COMPONENTS * LANES
S_VALUE, S_SIZE, S_ERROR, S_STORED, S_FLOOR, S_TOP, S_REACH, S_SPAN, S_PEAK = (
    np.int64(part * LANES) for part in CARRIED
)
# Places of the other buffer: value, magnitude, error and peak of v, w, k, r, k v and
# the readout; then the total error after a step, and the peak of a state as it is kept.
V, W, K, R, X, OUT = (np.int64(i * 4 * LANES) for i in range(6))
M, E, P = (np.int64(i * LANES) for i in range(1, 4))
TOTAL, KEPT = (np.int64(i * LANES) for i in (24, 25))
Z = np.int64(26 * LANES)  # the decay of values, where it is a factor of its own
ROWS = 30 * LANES


@jit(forceinline=True, **NO_ALLOCATION)
def higher(peak, top):
    """The larger one, or `top` where one of them is no number."""
    return peak if peak > top else top


@jit(forceinline=True, **NO_ALLOCATION)
def at(x, g, t, k):
    """x[g, t, k, 0]; sizes of 1 are repeated."""
    g = g if x.shape[0] > 1 else 0
    t = t if x.shape[1] > 1 else 0
    k = k if x.shape[2] > 1 else 0
    return x[g, t, k, 0]


@jit(forceinline=True, **NO_ALLOCATION)
def peak_at(x, g, t, k):
    """The peak of x[g, t, k, 0], four components; infinity where it is no number."""
    peak = at(x[3], g, t, k)
    return peak if peak == peak else np.inf


@jit(**NO_ALLOCATION)
def is_alike(x):
    """Whether four components are the same for all lanes."""
    lanes = x[0].shape[3] * x[1].shape[3] * x[2].shape[3] * x[3].shape[3]
    return lanes == 1


@jit(**NO_ALLOCATION)
def load(rows, place, x, g, t, k, first, n):
    """The four components of n lanes of x[g, t, k] at a place; sizes of 1 repeated."""
    for part in range(4):
        row, whole = rows[place + part * LANES :], x[part]
        if whole.shape[3] == 1:
            one = at(whole, g, t, k)
            for i in range(LANES):
                row[i] = one
        else:
            here = whole[
                g if whole.shape[0] > 1 else 0,
                t if whole.shape[1] > 1 else 0,
                k if whole.shape[2] > 1 else 0,
            ]
            for i in range(n):
                row[i] = here[first + i]
    peaks = rows[place + P :]
    for i in range(LANES):
        peaks[i] = peaks[i] if peaks[i] == peaks[i] else np.inf


@jit(forceinline=True, **NO_ALLOCATION)
def join(s, rows, place):
    """Raises the peaks of a state by a row."""
    for i in range(LANES):
        s[S_PEAK + i] = higher(s[S_PEAK + i], rows[place + i])


@jit(forceinline=True, **NO_ALLOCATION)
def decay_by_key(rows, w, size, error, peak, c):
    """w z in W, one w for all lanes: the product of two ErrorNumbers."""
    u, eta = c[U], c[ETA]
    for i in range(LANES):
        z_size, z_error = rows[Z + M + i], rows[Z + E + i]
        m = size * z_size
        e = size * z_error + error * (z_size + z_error)
        e += u * (m + e) + eta
        top = m + e if m + e == m + e else np.inf
        rows[W + i], rows[W + M + i], rows[W + E + i] = w * rows[Z + i], m, e
        rows[W + P + i] = higher(higher(top, rows[Z + P + i]), peak)


@jit(forceinline=True, **NO_ALLOCATION)
def _drive_one(rows, i, key, size, error, u, eta):
    """k v with magnitude and error, in lane i: the product of two ErrorNumbers."""
    v_size, v_error = rows[V + M + i], rows[V + E + i]
    m = size * v_size
    e = size * v_error + error * (v_size + v_error)
    rows[X + i] = key * rows[V + i]
    rows[X + M + i] = m
    rows[X + E + i] = e + (u * (m + e) + eta)


@jit(forceinline=True, **NO_ALLOCATION)
def drive_alike(rows, key, size, error, c):
    """k v, one key for all lanes."""
    u, eta = c[U], c[ETA]
    for i in range(LANES):
        _drive_one(rows, i, key, size, error, u, eta)


@jit(forceinline=True, **NO_ALLOCATION)
def drive(rows, c):
    """k v, a key for each lane."""
    u, eta = c[U], c[ETA]
    for i in range(LANES):
        key, size, error = rows[K + i], rows[K + M + i], rows[K + E + i]
        _drive_one(rows, i, key, size, error, u, eta)


@jit(forceinline=True, **NO_ALLOCATION)
def drive_as_it_is(rows):
    """v itself."""
    for i in range(3 * LANES):
        rows[X + i] = rows[V + i]


@jit(forceinline=True, **NO_ALLOCATION)
def cast_drive(rows, s, cast):
    """What is written rounded into another format: unit roundoff, floor, largest."""
    u, eta, largest = cast[0], cast[1], cast[2]
    for i in range(LANES):
        top = abs(rows[X + i]) + rows[X + E + i]
        rows[X + E + i] = rows[X + E + i] + (u * top + eta)
        s[S_PEAK + i] = s[S_PEAK + i] if top <= largest else np.inf


@jit(forceinline=True, **NO_ALLOCATION)
def _total(rows, s, c, path):
    """`error_scan.total_error` of a row, in TOTAL."""
    if c[TREES] == 0.0:
        for i in range(LANES):
            rows[TOTAL + i] = s[S_ERROR + i]
        return
    growth, grown = path[GROWTH], path[GROWN]
    adds, steps = 2.0 * max(path[ADDS], 1.0), path[STEPS] * c[ETA]
    for i in range(LANES):
        error, stored = s[S_ERROR + i], s[S_STORED + i]
        e = error + (stored + growth * (s[S_SIZE + i] + error + stored))
        lost = adds * s[S_FLOOR + i] + steps * s[S_REACH + i]
        rows[TOTAL + i] = e + grown * lost


@jit(forceinline=True, **NO_ALLOCATION)
def settle_row(rows, s, c, path):
    """`error_scan.settle` of a row that no step was taken from."""
    _total(rows, s, c, path)
    for i in range(LANES):
        size = s[S_SIZE + i] if c[TREES] > 0.0 else abs(s[S_VALUE + i])
        s[S_PEAK + i] = higher(s[S_PEAK + i], size + rows[TOTAL + i])


@jit(forceinline=True, **NO_ALLOCATION)
def keep_row(rows, s, c, path):
    """`error_scan.keep_state` of a row."""
    _total(rows, s, c, path)
    place = S_STORED if c[TREES] > 0.0 else S_ERROR
    u, eta, largest = c[STATE_U], c[STATE_ETA], c[STATE_LARGEST]
    for i in range(LANES):
        top = abs(s[S_VALUE + i]) + rows[TOTAL + i]
        s[S_PEAK + i] = s[S_PEAK + i] if top <= largest else np.inf
        s[place + i] += u * top + eta


@jit(forceinline=True, **NO_ALLOCATION)
def _any_order_one(rows, s, i, w, we, floor, peak, of):
    """`error_scan._any_order` and `settle` in lane i, but for FLOOR and SPAN.

    `floor` is that after the step, `peak` has joined the span, and `of` is what all
    lanes share.
    """
    u, age, steps, adds, growth, grown, stores = of
    high, size = abs(w) + we, s[S_SIZE + i]
    lasting, more = high * (1.0 + age), we + age * high
    error = lasting * s[S_ERROR + i] + more * size + rows[X + E + i]
    s[S_VALUE + i] = w * s[S_VALUE + i] + rows[X + i]
    size = abs(w) * size + rows[X + M + i]
    s[S_SIZE + i], s[S_ERROR + i] = size, error
    top = higher(s[S_TOP + i], size + error)
    reach = higher(high * s[S_REACH + i], top)
    s[S_TOP + i], s[S_REACH + i] = top, reach
    if stores:
        stored = high * (1.0 + u) * s[S_STORED + i]
        s[S_STORED + i] = stored
        e = error + (stored + growth * (size + error + stored))
    else:
        e = error + growth * (size + error)
    e += grown * (adds * floor + steps * reach)
    rows[TOTAL + i] = e
    other = higher(higher(s[S_PEAK + i], rows[V + P + i]), peak)
    s[S_PEAK + i] = higher(other, size + e)


@jit(forceinline=True, **NO_ALLOCATION)
def _shared(c, path):
    """What all lanes of a step in any order share; `path` is the row after it."""
    adds, steps = 2.0 * max(path[ADDS], 1.0), path[STEPS] * c[ETA]
    stores = c[STATE_U] > 0.0
    return c[U], c[STEP_U], steps, adds, path[GROWTH], path[GROWN], stores


@jit(forceinline=True, **NO_ALLOCATION)
def any_order_alike(rows, s, w, we, peak, c, path):
    """One step and what it leaves, one decay for all lanes, at this step as before.

    What depends on decays alone stands in the first lane, until `spread`.
    """
    of, high = _shared(c, path), abs(w) + we
    floor, span = high * s[S_FLOOR] + c[ETA] + c[ADD_ETA], 0.0
    if c[PRODUCTS] > 0.0:
        span = higher(high, high * (1.0 + c[U]) * s[S_SPAN])
    s[S_FLOOR], s[S_SPAN] = floor, span
    peak = higher(peak, span)
    for i in range(LANES):
        _any_order_one(rows, s, i, w, we, floor, peak, of)


@jit(forceinline=True, **NO_ALLOCATION)
def spread(s):
    """FLOOR and SPAN of the first lane in all lanes."""
    for i in range(1, LANES):
        s[S_FLOOR + i], s[S_SPAN + i] = s[S_FLOOR], s[S_SPAN]


@jit(forceinline=True, **NO_ALLOCATION)
def any_order(rows, s, peak, c, path):
    """One step and what it leaves, a decay for each lane."""
    of, eta, add_eta, u = _shared(c, path), c[ETA], c[ADD_ETA], c[U]
    products = 1.0 if c[PRODUCTS] > 0.0 else 0.0
    for i in range(LANES):
        w, we = rows[W + i], rows[W + E + i]
        high = abs(w) + we
        floor = high * s[S_FLOOR + i] + eta + add_eta
        span = products * higher(high, high * (1.0 + u) * s[S_SPAN + i])
        above = higher(higher(peak, rows[W + P + i]), span)
        s[S_FLOOR + i], s[S_SPAN + i] = floor, span
        _any_order_one(rows, s, i, w, we, floor, above, of)


@jit(forceinline=True, **NO_ALLOCATION)
def _in_order_one(rows, s, i, w, we, peak, u, product_u, eta, add_eta):
    """`error_scan._in_order` and `settle` in lane i; product_u is 0 for an fma."""
    high = abs(w) + we
    old, before = abs(s[S_VALUE + i]), s[S_ERROR + i]
    reach = high * (old + before)
    value = w * s[S_VALUE + i] + rows[X + i]
    e = high * before + we * old + rows[X + E + i] + eta
    e += product_u * reach
    e = (e + u * abs(value)) / (1.0 - u) + add_eta
    s[S_VALUE + i], s[S_ERROR + i], rows[TOTAL + i] = value, e, e
    # A product that is rounded before it is added, and what is written, are results.
    written = rows[X + M + i] + rows[X + E + i]
    rounded = reach * (1.0 + u) if product_u > 0.0 else written
    other = higher(higher(s[S_PEAK + i], rows[V + P + i]), peak)
    other = higher(higher(other, written), rounded)
    s[S_PEAK + i] = higher(other, abs(value) + e)


@jit(forceinline=True, **NO_ALLOCATION)
def in_order_alike(rows, s, w, we, peak, c):
    """One step and what it leaves, one decay for all lanes."""
    u, eta, add_eta = c[U], c[ETA], c[ADD_ETA]
    product_u = u if c[FMA] == 0.0 else 0.0
    for i in range(LANES):
        _in_order_one(rows, s, i, w, we, peak, u, product_u, eta, add_eta)


@jit(forceinline=True, **NO_ALLOCATION)
def in_order(rows, s, peak, c):
    """One step and what it leaves, a decay for each lane."""
    u, eta, add_eta = c[U], c[ETA], c[ADD_ETA]
    product_u = u if c[FMA] == 0.0 else 0.0
    for i in range(LANES):
        w, we, above = rows[W + i], rows[W + E + i], higher(peak, rows[W + P + i])
        _in_order_one(rows, s, i, w, we, above, u, product_u, eta, add_eta)


@jit(forceinline=True, **NO_ALLOCATION)
def as_kept(rows, s, c, stored):
    """The peak in KEPT; where stored, `error_tile.as_stored` of the total error."""
    u, eta, largest = c[STATE_U], c[STATE_ETA], c[STATE_LARGEST]
    for i in range(LANES):
        rows[KEPT + i] = s[S_PEAK + i]
    if stored:
        for i in range(LANES):
            top = abs(s[S_VALUE + i]) + rows[TOTAL + i]
            rows[KEPT + i] = rows[KEPT + i] if top <= largest else np.inf
            rows[TOTAL + i] += u * top + eta


@jit(**NO_ALLOCATION)
def write_row(states, t, g, key, first, n, rows, s, trees):
    """`error_tile.write_state` of n lanes."""
    for i in range(n):
        value, peak = s[S_VALUE + i], rows[KEPT + i]
        states[0, t, g, key, first + i] = value
        states[1, t, g, key, first + i] = s[S_SIZE + i] if trees else abs(value)
        states[2, t, g, key, first + i] = rows[TOTAL + i]
        states[3, t, g, key, first + i] = peak if peak == peak else np.inf
        states[4, t, g, key, first + i] = s[S_FLOOR + i]


@jit(forceinline=True, **NO_ALLOCATION)
def _read_one(rows, s, i, value, size, readout, m, error, u, eta):
    """`error_tile.read_out` in lane i."""
    e = rows[TOTAL + i]
    part = m * size
    pe = m * e + error * (size + e)
    pe += u * (part + pe) + eta
    rows[OUT + i] += readout * value
    rows[OUT + M + i] += part
    rows[OUT + E + i] += pe
    rows[OUT + P + i] = higher(rows[OUT + P + i], s[S_PEAK + i])


@jit(forceinline=True, **NO_ALLOCATION)
def read_alike(rows, s, readout, m, error, c):
    """Adds r S to the readout, one r for all lanes."""
    u, eta = c[U], c[ETA]
    if c[TREES] > 0.0:
        for i in range(LANES):
            value, size = s[S_VALUE + i], s[S_SIZE + i]
            _read_one(rows, s, i, value, size, readout, m, error, u, eta)
    else:
        for i in range(LANES):
            value = s[S_VALUE + i]
            _read_one(rows, s, i, value, abs(value), readout, m, error, u, eta)


@jit(forceinline=True, **NO_ALLOCATION)
def read_row(rows, s, c):
    """Adds r S to the readout, an r for each lane."""
    u, eta = c[U], c[ETA]
    for i in range(LANES):
        r, m, error = rows[R + i], rows[R + M + i], rows[R + E + i]
        value = s[S_VALUE + i]
        size = s[S_SIZE + i] if c[TREES] > 0.0 else abs(value)
        _read_one(rows, s, i, value, size, r, m, error, u, eta)


@jit(forceinline=True, **NO_ALLOCATION)
def show(rows, s, trees):
    """The state itself in place of a readout."""
    for i in range(LANES):
        value = s[S_VALUE + i]
        rows[OUT + i] = value
        rows[OUT + M + i] = s[S_SIZE + i] if trees else abs(value)
        rows[OUT + E + i] = rows[TOTAL + i]
        rows[OUT + P + i] = s[S_PEAK + i]
