"""The compiled loops of `contraction`: rows of lanes at fixed places of a buffer."""

import numpy as np

from scancheck.oracles.jit import NO_ALLOCATION, jit

LANES = 32
NUMBER = np.int64(4 * LANES)
M, E, P = (np.int64(i * LANES) for i in range(1, 4))
# Operands, in the order of `contracted`, then what sums over keys are gathered in, and
# the product of two rows.
BEFORE, AFTER, G, K, V, BAR, LEFT, RIGHT = range(8)
S, A, C, X, B, OF_K, ERASED, WRITTEN, FOLD = (np.int64(i * NUMBER) for i in range(9))
ROOM = 9 * 4 * LANES
SUMS = 4  # over lanes: of k, r, p and q


@jit(forceinline=True, **NO_ALLOCATION)
def _load(rows, place, parts, strides, g, t, k, first, n):
    """n lanes of the four components of a number, and zeros beyond them."""
    for part in range(4):
        x, step = parts[part], strides[part]
        row = rows[place + part * LANES : place + (part + 1) * LANES]
        start = step[4] + g * step[0] + t * step[1] + k * step[2]
        if step[3] == 0:
            one = x[start]
            for i in range(LANES):
                row[i] = one
        else:
            here = x[start + first : start + first + n]
            for i in range(n):
                row[i] = here[i]
        for i in range(n, LANES):
            row[i] = 0.0


@jit(forceinline=True, **NO_ALLOCATION)
def _at(parts, strides, part, g, t, k):
    """A component that is the same for all lanes."""
    step = strides[part]
    return parts[part][step[4] + g * step[0] + t * step[1] + k * step[2]]


@jit(forceinline=True, **NO_ALLOCATION)
def _higher(peak, top):
    """The larger one, or `top` where one of them is no number."""
    return peak if peak > top else top


@jit(forceinline=True, **NO_ALLOCATION)
def _error(m, e, other_m, other_e, product, u):
    """The error of a product, but for what underflows."""
    error = m * other_e + e * (other_m + other_e)
    return error + u * (product + error)


@jit(forceinline=True, **NO_ALLOCATION)
def _gather(rows, place, value, size, error, peak, x, u):
    """Adds the product of one number for all lanes and a row to another row."""
    size = abs(size)
    for i in range(LANES):
        m, e = abs(rows[x + M + i]), rows[x + E + i]
        product = size * m
        rows[place + i] += value * rows[x + i]
        rows[place + M + i] += product
        rows[place + E + i] += _error(size, error, m, e, product, u)
        top = _higher(rows[x + P + i], peak)
        rows[place + P + i] = _higher(rows[place + P + i], top)


@jit(forceinline=True, **NO_ALLOCATION)
def _fold(rows, x, y, u, sums):
    """Adds the sum over lanes of the product of two rows to sums [4]."""
    for i in range(LANES):
        m, e = abs(rows[x + M + i]), rows[x + E + i]
        other_m, other_e = abs(rows[y + M + i]), rows[y + E + i]
        product = m * other_m
        rows[FOLD + i] = rows[x + i] * rows[y + i]
        rows[FOLD + M + i] = product
        rows[FOLD + E + i] = _error(m, e, other_m, other_e, product, u)
        rows[FOLD + P + i] = _higher(rows[x + P + i], rows[y + P + i])
    half = LANES // 2
    while half > 0:
        for i in range(half):
            rows[FOLD + i] += rows[FOLD + half + i]
            rows[FOLD + M + i] += rows[FOLD + M + half + i]
            rows[FOLD + E + i] += rows[FOLD + E + half + i]
            top = rows[FOLD + P + half + i]
            rows[FOLD + P + i] = _higher(rows[FOLD + P + i], top)
        half //= 2
    sums[0] += rows[FOLD]
    sums[1] += rows[FOLD + M]
    sums[2] += rows[FOLD + E]
    sums[3] = _higher(sums[3], rows[FOLD + P])


@jit(forceinline=True, **NO_ALLOCATION)
def _multiply(rows, u, eta, w, g, t, k, first, n):
    """w = G S_{t-1}, n lanes."""
    for i in range(n):
        m, e = abs(rows[X + M + i]), rows[X + E + i]
        other_m, other_e = abs(rows[S + M + i]), rows[S + E + i]
        product = m * other_m
        error = _error(m, e, other_m, other_e, product, u) + eta
        w[0, g, t, k, first + i] = rows[X + i] * rows[S + i]
        w[1, g, t, k, first + i] = product
        w[2, g, t, k, first + i] = error
        top = _higher(rows[X + P + i], rows[S + P + i])
        w[3, g, t, k, first + i] = _higher(top, product + error)


@jit(**NO_ALLOCATION)
def contract_tasks(
    begin, stop, parts, strides, erases, growth, w, over_keys, over_lanes, rows, sums
):
    """Runs the tasks begin..stop, one for each group and step.

    parts, strides: the operands. growth: u, eta, the share and the constant that a sum
    over keys adds, and whether magnitudes are those of values. w [4, G, T, K, L],
    over_keys [4, G, T, L] and over_lanes [SUMS, 4, G, T, K] receive products and sums,
    without what sums add; rows [ROOM] and sums [K, SUMS, 4] are room.
    """
    _, groups, steps, keys, lanes = w.shape
    u, eta, share, constant, signed = growth
    for task in range(begin, stop):
        g, t = task // steps, task % steps
        sums[:] = 0.0
        for first in range(0, lanes, LANES):
            n = min(LANES, lanes - first)
            _load(rows, C, parts[V], strides[V], g, t, 0, first, n)
            _load(rows, B, parts[BAR], strides[BAR], g, t, 0, first, n)
            for i in range(3 * NUMBER):
                rows[OF_K + i] = 0.0
            for k in range(keys):
                _load(rows, X, parts[G], strides[G], g, t, k, first, n)
                _load(rows, S, parts[BEFORE], strides[BEFORE], g, t, k, first, n)
                _multiply(rows, u, eta, w, g, t, k, first, n)
                for turn in range(3 if erases else 1):
                    place, x, by = OF_K, X, K
                    if turn == 1:
                        place, x, by = ERASED, S, RIGHT
                    elif turn == 2:
                        place, x, by = WRITTEN, X, LEFT
                    value = _at(parts[by], strides[by], 0, g, t, k)
                    size = _at(parts[by], strides[by], 1, g, t, k)
                    error = _at(parts[by], strides[by], 2, g, t, k)
                    peak = _at(parts[by], strides[by], 3, g, t, k)
                    _gather(rows, place, value, size, error, peak, x, u)
            for i in range(n):
                for part in range(4):
                    over_keys[part, g, t, first + i] = rows[OF_K + part * LANES + i]
                over_keys[2, g, t, first + i] += keys * eta
            for i in range(2 * LANES):
                # Both sums in turn, which are numbers of the next products.
                at = ERASED + i // LANES * NUMBER + i % LANES
                m, e = rows[at + M], rows[at + E] + keys * eta
                e += share * (m + e) + constant
                rows[at + E] = e if i % LANES < n else 0.0
                rows[at + P] = _higher(rows[at + P], m + e)
                if signed:
                    rows[at + M] = rows[at]
            for k in range(keys):
                _load(rows, X, parts[G], strides[G], g, t, k, first, n)
                _load(rows, A, parts[AFTER], strides[AFTER], g, t, k, first, n)
                _fold(rows, X, C, u, sums[k, 0])
                _fold(rows, A, B, u, sums[k, 1])
                if erases:
                    _load(rows, S, parts[BEFORE], strides[BEFORE], g, t, k, first, n)
                    _fold(rows, X, ERASED, u, sums[k, 2])
                    _fold(rows, S, WRITTEN, u, sums[k, 3])
        for k in range(keys):
            for one in range(SUMS):
                for part in range(4):
                    over_lanes[one, part, g, t, k] = sums[k, one, part]
                over_lanes[one, 2, g, t, k] += lanes * eta
