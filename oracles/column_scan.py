"""The compiled scan of states that a rank-one transition moves, column by column.

    c_t = q_t^T S_{t-1},   S_t = w_t S_{t-1} + p_t c_t^T + k_t v_t^T,   o_t = r_t^T S_t

Beside the columns of S it carries a bound e on the 2-norm of each column's error:

    e_t = grow_t e_{t-1} + loss_t (|S_{t-1}| + e_{t-1}) + own_t + last |S_t|
    error of o_t <= read_t e_t + read_loss_t (|S_t| + e_t)

with |S| the 2-norm of the column. What the coefficients are says whoever calls: an
oracle charges its own roundings, a budget those of a kernel. Where squares underflow
the norm is bounded by the sum of magnitudes.
"""

import numpy as np

from scancheck.oracles.fma import fma
from scancheck.oracles.jit import NO_ALLOCATION, jit

LANES = 32  # columns of a task, a constant so that loops over them are vectors
# Sums of squares below this may have lost entries to underflow; to others those are
# nothing.
LOST = 2.0**-900


@jit(**NO_ALLOCATION)
def _lengths(rows, keys, n):
    """Sums of squares in rows[keys + 1] become norms, from above, of n columns."""
    size = keys + 1
    least = np.inf
    for j in range(n):
        least = min(least, rows[size, j])
    small = least < LOST
    for j in range(LANES):
        if small and rows[size, j] < LOST:
            rows[size, j] = 0.0
            for i in range(keys):
                rows[size, j] += abs(rows[i, j])
        else:
            rows[size, j] = np.sqrt(rows[size, j])


@jit(**NO_ALLOCATION)
def column_tasks(
    begin, stop, w, p, q, k, v, r, grow, loss, own, last, read, read_loss,
    state, error, o, states, errors, rows,
):  # fmt: skip
    """Runs the tasks begin..stop, a group and LANES columns each.

    w [G, T, K or 1], p, q, k, r [G, T, K], v [G, T, L]; grow, loss, read, read_loss
    [G, T], own [G, T, L]. state [G, K, L] and error [G, L] are replaced; o [3, G, T, L]
    receives readouts, their errors, and |S_t| + e_t, states [G, T + 1, K, L] and errors
    [G, T + 1, L] all but the first unless they are empty. rows [K + 5, LANES] is room.
    """
    _, steps, keys = k.shape
    lanes = v.shape[2]
    blocks = -(-lanes // LANES)
    keep = states.shape[1] > 0
    one = w.shape[2] == 1
    inner, size, out, e, value = keys, keys + 1, keys + 2, keys + 3, keys + 4
    for task in range(begin, stop):
        g, first = task // blocks, (task % blocks) * LANES
        n = min(lanes - first, LANES)
        for i in range(keys):
            for j in range(LANES):
                rows[i, j] = state[g, i, first + j] if j < n else 0.0
        for j in range(LANES):
            rows[e, j] = error[g, first + j] if j < n else 0.0
            rows[value, j] = 0.0
            rows[size, j] = 0.0
        for i in range(keys):
            for j in range(LANES):
                rows[size, j] = fma(rows[i, j], rows[i, j], rows[size, j])
        _lengths(rows, keys, n)
        for t in range(steps):
            for j in range(LANES):
                rows[inner, j] = 0.0
                rows[out, j] = 0.0
                rows[e, j] = fma(
                    grow[g, t] + loss[g, t], rows[e, j], loss[g, t] * rows[size, j]
                )
                rows[size, j] = 0.0
            for j in range(n):
                rows[value, j] = v[g, t, first + j]
            for i in range(keys):
                c = q[g, t, i]
                for j in range(LANES):
                    rows[inner, j] = fma(c, rows[i, j], rows[inner, j])
            for i in range(keys):
                decay = w[g, t, 0] if one else w[g, t, i]
                left, key, readout = p[g, t, i], k[g, t, i], r[g, t, i]
                for j in range(LANES):
                    kept = fma(left, rows[inner, j], decay * rows[i, j])
                    x = fma(key, rows[value, j], kept)
                    rows[i, j] = x
                    rows[size, j] = fma(x, x, rows[size, j])
                    rows[out, j] = fma(readout, x, rows[out, j])
            _lengths(rows, keys, n)
            for j in range(n):
                length = rows[size, j]
                rows[e, j] += own[g, t, first + j] + last * length
                o[0, g, t, first + j] = rows[out, j]
                above = length + rows[e, j]
                o[2, g, t, first + j] = above
                o[1, g, t, first + j] = (
                    read[g, t] * rows[e, j] + read_loss[g, t] * above
                )
            if keep:
                for i in range(keys):
                    for j in range(n):
                        states[g, t + 1, i, first + j] = rows[i, j]
                for j in range(n):
                    errors[g, t + 1, first + j] = rows[e, j]
        for i in range(keys):
            for j in range(n):
                state[g, i, first + j] = rows[i, j]
        for j in range(n):
            error[g, first + j] = rows[e, j]
