"""A tile of time in log space, chunk by chunk, forwards and backwards.

Error numbers are packed as in `error_tile`: value, magnitude, error, peak.
"""

import numpy as np

from scancheck.bounds import log_difference as difference
from scancheck.bounds import log_masked as masked
from scancheck.bounds import log_prefix as prefix
from scancheck.bounds import log_whole as whole
from scancheck.bounds.error_scan import raised
from scancheck.bounds.error_tile import pick, read_out
from scancheck.bounds.log_entry import (
    BROKEN,
    CAST_LARGEST,
    DECAY,
    DIFFERENCE,
    DRIVE,
    DRIVE_ERROR,
    ERROR,
    ETA,
    FACTORED,
    FORM,
    INNER,
    LASTING,
    LEAD,
    LOG,
    MASKED,
    NEW_RHO,
    NEW_SHARE,
    OWN,
    PEAK,
    PRODUCT,
    RATIO,
    REACH,
    RENORMALISED,
    RHO,
    SHARE,
    SIZE,
    STATE_ETA,
    STATE_U,
    SUM_ERROR,
    TREES,
    VALUE,
    WHOLE,
    U,
    open_chunk,
    write_state,
)
from scancheck.oracles.jit import jit


@jit()
def push(s, h, lt, wt, xt, c, table, here, chunk, every):
    """One step on one entry's components and history, in place.

    lt, wt, xt: the step's log gate, decay and value written, as packed numbers. A step
    `here` before the first one changes nothing.
    """
    if here < 0:
        return
    at, form = here % chunk, c[FORM]
    if form == WHOLE:
        whole.push(s, lt, wt, xt, c, table, here)
        return
    if at == 0:
        open_chunk(s, c, here, chunk, every)
        prefix.open_inner(s, form == RATIO)
    s[LASTING] = raised(s[LASTING], xt[3])
    if lt[0] > -np.inf:
        s[LASTING] = raised(s[LASTING], lt[3])
    s[VALUE] = wt[0] * s[VALUE] + xt[0]
    s[SIZE] = abs(wt[0]) * s[SIZE] + xt[1]
    h[LOG, at] = np.log(abs(wt[0])) if form == RATIO else lt[0]
    h[DECAY, at], h[DRIVE, at], h[DRIVE_ERROR, at] = abs(wt[0]), xt[1], xt[2]
    if form == RATIO:
        prefix.extend_product(s, h, at, wt[0], wt[2], c, table)
    elif form == MASKED:
        masked.extend_columns(s, h, at, lt[0], lt[2])
    else:
        difference.extend_sum(s, h, at, lt[0], lt[2], c, table)
    s[NEW_SHARE], s[NEW_RHO] = h[SHARE, at], h[RHO, at]
    if s[BROKEN] > 0.0:
        s[ERROR] = s[PEAK] = np.inf
        return
    s[REACH] = max((abs(wt[0]) + wt[2]) * s[REACH], s[SIZE] + s[ERROR])
    e, top = _state_error(s, h, at, c, table)
    s[ERROR] = e
    size = abs(s[VALUE]) if form == RENORMALISED else s[SIZE]
    s[PEAK] = raised(s[LASTING], max(top, size + e))
    if not top <= c[CAST_LARGEST]:
        s[PEAK] = np.inf


@jit()
def _state_error(s, h, at, c, table):
    """Error of S_t, and the largest decay that is formed for it alone."""
    form = c[FORM]
    if form == DIFFERENCE:
        return difference.state_error(s, h, at, c, table)
    if form == MASKED:
        return masked.state_error(s, h, at, c, table)
    own = lost = 0.0
    high = 1.0
    if form == FACTORED:
        prefix.extend_factors(s, h, at, c, table)
        own, lost, _, high = prefix.outer_factor(s, h, at, c)
    elif form == RENORMALISED:
        prefix.extend_scaled(s, h, at, c)
        own = h[OWN, at]
    else:
        high = abs(s[PRODUCT]) * np.exp(s[SUM_ERROR] + h[RHO, at])
    return prefix.state_error(s, h, at, own, lost, high, c, table), high


@jit()
def stored_error(s, c):
    """What a store of S_t in the state's format adds to its error."""
    return c[STATE_U] * (abs(s[VALUE]) + s[ERROR]) + c[STATE_ETA]


@jit()
def run_forward(
    log, w, x, r, has_r, s, h, c, table, o, states, start, every, begin, stop
):
    """Runs tasks of a tile: as `error_tile.run_forward`, log [4, ...] beside w.

    s [COMPONENTS, G, K, L] and h [HISTORY, chunk, G, K, L] in place.
    """
    _, groups, keys, lanes = s.shape
    steps, chunk = x.shape[2], h.shape[1]
    keep = states.shape[1] > 0
    # The factor exp(c_t), or p_t, of a sum may come after its read; a chunk's last
    # state is whole before the next chunk's first token reads it.
    prefixed = c[FORM] == FACTORED or c[FORM] == RATIO
    for task in range(begin, stop):
        g, lane = task // lanes, task % lanes
        for k in range(keys):
            one, past = s[:, g, k, lane].copy(), h[:, :, g, k, lane].copy()
            if keep:
                write_state(states, 0, g, k, lane, one, c)
            for t in range(steps):
                lt, wt = pick(log, g, t, k, lane), pick(w, g, t, k, lane)
                xt = pick(x, g, t, k, lane)
                here = start + t
                push(one, past, lt, wt, xt, c, table, here, chunk, every)
                size = one[SIZE] if c[TREES] > 0.0 else abs(one[VALUE])
                e = one[ERROR]
                if c[STATE_U] > 0.0 and (here + 1) % every == 0:
                    # Outputs may be read from the state as it is stored, gradients too.
                    e += stored_error(one, c)
                if keep:
                    write_state(states, t + 1, g, k, lane, one, c)
                    states[2, t + 1, g, k, lane] = e
                if has_r:
                    rt = pick(r, g, t, k, lane)
                    peak = one[PEAK]
                    if prefixed and (c[LEAD] == 0.0 or (here + 1) % chunk != 0):
                        peak = raised(peak, (rt[1] + rt[2]) * one[INNER])
                    read_out(
                        o,
                        g,
                        t,
                        lane,
                        rt,
                        one[VALUE],
                        size,
                        e,
                        peak,
                        c[U],
                        c[ETA],
                    )
                else:
                    o[0, g, t, lane] = one[VALUE]
                    o[1, g, t, lane] = size
                    o[2, g, t, lane] = e
                    o[3, g, t, lane] = one[PEAK]
            s[:, g, k, lane], h[:, :, g, k, lane] = one, past


@jit()
def run_adjoint(
    log, w, y, s, h, above, c, table, states, start, total, every, begin, stop
):
    """Runs G_t = w_{t+1} G_{t+1} + y_t back, tasks begin..stop, chunks from the end.

    `above` [8, G, K, L]: log gate and decay of step t + 1 as packed numbers.
    """
    _, groups, keys, lanes = s.shape
    steps, chunk = y.shape[2], h.shape[1]
    for task in range(begin, stop):
        g, lane = task // lanes, task % lanes
        for k in range(keys):
            one, past = s[:, g, k, lane].copy(), h[:, :, g, k, lane].copy()
            up = above[:, g, k, lane].copy()
            for back in range(steps):
                t = steps - 1 - back
                done = total - 1 - (start + t)
                yt = pick(y, g, t, k, lane)
                push(one, past, up[:4], up[4:], yt, c, table, done, chunk, every)
                write_state(states, t, g, k, lane, one, c)
                if c[LEAD] > 0.0 and c[STATE_U] > 0.0 and (done + 1) % every == 0:
                    # The next token's read is in G_t where that is stored.
                    states[2, t, g, k, lane] += stored_error(one, c)
                up[:4] = pick(log, g, t, k, lane)
                up[4:] = pick(w, g, t, k, lane)
            s[:, g, k, lane], h[:, :, g, k, lane] = one, past
            above[:, g, k, lane] = up
