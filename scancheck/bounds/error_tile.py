"""The companion scans of `error_scan` run over a tile of time, forwards and backwards.

Error numbers are packed as [4, ...]: value, magnitude, error, peak. States carry a
fifth row, the absolute errors of underflow alone, for reverse mode through trees.
"""

import numpy as np

from scancheck.bounds.error_scan import (
    ETA,
    FLOOR,
    PEAK,
    RUNNING,
    SIZE,
    STATE_ETA,
    STATE_LARGEST,
    STATE_U,
    TREES,
    VALUE,
    U,
    advance,
    raised,
    settle,
    sharper,
)
from scancheck.oracles.jit import NO_ALLOCATION, jit

STATE_ROWS = 5


@jit(**NO_ALLOCATION)
def place(size, index):
    """The index on an axis that repeats where it has size 1."""
    return index if size > 1 else 0


@jit()
def pick(x, g, t, k, lane):
    """x[:, g, t, k, lane] where axes of size 1 repeat."""
    return x[:, g, place(x.shape[2], t), k, place(x.shape[4], lane)]


@jit(**NO_ALLOCATION)
def write_state(states, t, g, k, lane, s, c, e, peak):
    """Entry t of the kept states, with its total error e and its peak."""
    states[0, t, g, k, lane] = s[VALUE]
    states[1, t, g, k, lane] = s[SIZE] if c[TREES] > 0.0 else abs(s[VALUE])
    states[2, t, g, k, lane] = e
    states[3, t, g, k, lane] = peak
    states[4, t, g, k, lane] = s[FLOOR]


@jit(**NO_ALLOCATION)
def as_stored(s, c, e):
    """The error e and the peak of a state that is read from where it is stored."""
    top = abs(s[VALUE]) + e
    peak = s[PEAK] if top <= c[STATE_LARGEST] else np.inf
    return e + (c[STATE_U] * top + c[STATE_ETA]), peak


@jit(**NO_ALLOCATION)
def read_out(o, g, t, lane, rt, value, size, e, peak, u, eta):
    """o += r S, the product rounded by u and eta; additions are counted afterwards."""
    m = rt[1] * size
    pe = rt[1] * e + rt[2] * (size + e)
    pe += u * (m + pe) + eta
    o[0, g, t, lane] += rt[0] * value
    o[1, g, t, lane] += m
    o[2, g, t, lane] += pe
    top = raised(raised(peak, rt[3]), m + pe)
    o[3, g, t, lane] = raised(o[3, g, t, lane], top)


@jit(**NO_ALLOCATION)
def run_forward(
    w, x, r, has_r, running, s, c, o, states, start, every, path, begin, stop
):
    """Runs the tasks begin..stop of a tile of error numbers, one per group and lane.

    w, x [4, G, T, K, L or 1]; r [4, G, T or 1, K, L or 1]; running [G, T, K, L], or
    empty; s [COMPONENTS, G, K, L] in place; o [4, G, T, L] out; states
    [5, T + 1, G, K, L] out, or empty; path [., 5] one row for every number of steps.
    """
    _, groups, keys, lanes = s.shape
    steps = x.shape[2]
    keep = states.shape[1] > 0
    emulated = running.shape[1] > 0
    stores = c[STATE_U] > 0.0
    for task in range(begin, stop):
        g, lane = task // lanes, task % lanes
        for k in range(keys):
            one = s[:, g, k, lane]
            if keep:
                e = settle(one, c, path[max(start, 0)])
                peak = one[PEAK]
                if stores and start % every == 0:
                    e, peak = as_stored(one, c, e)
                write_state(states, 0, g, k, lane, one, c, e, peak)
            for t in range(steps):
                here = start + t
                wt = w[:, g, place(w.shape[2], t), k, place(w.shape[4], lane)]
                xt = x[:, g, place(x.shape[2], t), k, place(x.shape[4], lane)]
                advance(
                    one,
                    wt[0],
                    wt[2],
                    xt[0],
                    xt[1],
                    xt[2],
                    raised(wt[3], xt[3]),
                    c,
                    here % every == 0,
                    path[max(here, 0)],
                )
                one[RUNNING] = running[g, t, k, lane] if emulated else np.inf
                e = sharper(settle(one, c, path[here + 1]), one[RUNNING])
                peak = one[PEAK]
                if stores and (here + 1) % every == 0:
                    # Outputs may be read from the state as it is stored, and gradients
                    # too: a backward pass has no other.
                    e, peak = as_stored(one, c, e)
                # A named order forms the states, and what is read is read from them.
                sums = c[TREES] > 0.0 and not emulated
                size = one[SIZE] if sums else abs(one[VALUE])
                if keep:
                    write_state(states, t + 1, g, k, lane, one, c, e, peak)
                if has_r:
                    rt = r[:, g, place(r.shape[2], t), k, place(r.shape[4], lane)]
                    read_out(
                        o, g, t, lane, rt, one[VALUE], size, e, one[PEAK], c[U], c[ETA]
                    )
                else:
                    o[0, g, t, lane] = one[VALUE]
                    o[1, g, t, lane] = size
                    o[2, g, t, lane] = e
                    o[3, g, t, lane] = one[PEAK]


@jit(**NO_ALLOCATION)
def settle_all(s, c, path, out):
    """Entry 0 of out [5, 1, G, K, L]: the states s [COMPONENTS, G, K, L], settled.

    `path` is the table's row of the steps so far. Peaks in s join their total errors.
    """
    _, groups, keys, lanes = s.shape
    for g in range(groups):
        for k in range(keys):
            for lane in range(lanes):
                one = s[:, g, k, lane]
                e = sharper(settle(one, c, path), one[RUNNING])
                write_state(out, 0, g, k, lane, one, c, e, one[PEAK])


@jit(**NO_ALLOCATION)
def run_adjoint(
    w, y, s, next_w, c, states, start, total, every, late, path, begin, stop
):
    """Runs G_t = w_{t+1} G_{t+1} + y_t back through a tile, tasks begin..stop.

    w [4, G, T, K, L or 1] and y [4, G, T, K, L] of the tile; s [COMPONENTS, G, K, L]
    holds G_{t+1} and next_w [4, G, K, L] its decay, both replaced; states
    [5, T, G, K, L] receives G_t. `late`: y_t belongs to the read of the next token, and
    is in G_t where that is stored.
    """
    _, groups, keys, lanes = s.shape
    steps = y.shape[2]
    for task in range(begin, stop):
        g, lane = task // lanes, task % lanes
        for k in range(keys):
            one, above = s[:, g, k, lane], next_w[:, g, k, lane]
            for back in range(steps):
                t = steps - 1 - back
                done = total - 1 - (start + t)
                yt = y[:, g, place(y.shape[2], t), k, place(y.shape[4], lane)]
                # A kernel may keep the cotangent every so many steps from the end, or
                # where the forward pass kept the state.
                boundary = done % every == 0 or (start + t + 1) % every == 0
                advance(
                    one,
                    above[0],
                    above[2],
                    yt[0],
                    yt[1],
                    yt[2],
                    raised(above[3], yt[3]),
                    c,
                    boundary,
                    path[max(done, 0)],
                )
                e = settle(one, c, path[max(done + 1, 0)])
                peak = one[PEAK]
                if late and c[STATE_U] > 0.0:
                    here = start + t + 1
                    if (done + 1) % every == 0 or here % every == 0:
                        e, peak = as_stored(one, c, e)
                write_state(states, t, g, k, lane, one, c, e, peak)
                wt = w[:, g, place(w.shape[2], t), k, place(w.shape[4], lane)]
                for part in range(4):
                    above[part] = wt[part]
