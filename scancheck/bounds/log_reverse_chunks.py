"""Reverse mode through chunks in log space: the forward's decays, transposed.

What automatic differentiation of a form makes of the cotangents y_t of a chunk's
states, or a backward pass that keeps the forward's running sums:

    G_j   = sum over t >= j of (decay over (j, t]) y_t
    Sbar  = sum over t of (decay over (0, t]) y_t        joins y at the end of the chunk
                                                         before, where it is S_in's
    diff, segsum     the decay is the forward's own exponential
    factored, renorm exp(-c_j) times the sum of exp(c_t) y_t
    ratio            the sum of p_t y_t, divided by p_j

An explicit adjoint is the same form on reversed time: its sums count from the end, and
so do its chunks, so that where the length is no multiple of the chunk they are cut
elsewhere and the exponentials that a term passes are one more or one less. Here c_t and
the cuts are the forward's: a large gate at the start of a chunk is in every c_t after
it, which differences of sums from the end do not see. Decays have the exponents' errors
theta_tj of `log_difference`, `log_masked` and `log_prefix` as they stand; additions and
underflow are those of the transposed sum, where exp(c_t) y_t falls off and what is lost
is multiplied by exp(-c_j). Neither way bounds the other; callers take the larger.
"""

import numpy as np

from scancheck.bounds.error_scan import raised
from scancheck.bounds.error_tile import pick
from scancheck.bounds.log_difference import later_rho
from scancheck.bounds.log_entry import (
    ADD_ETA,
    BROKEN,
    CAST_LARGEST,
    CHUNKS,
    DECAY,
    DIFFERENCE,
    DRIVE,
    DRIVE_ERROR,
    ETA,
    EXP0,
    EXP1,
    FACTORED,
    FORM,
    GROWTH,
    INNER,
    INNER_FLOOR,
    LASTING,
    LEAD,
    LOG,
    MASKED,
    NORMAL,
    OWN,
    RATIO,
    REACH,
    RENORMALISED,
    RHO,
    SHARE,
    SIZE,
    START_ERROR,
    START_SIZE,
    STATE_ETA,
    STATE_LARGEST,
    STATE_U,
    TREE_CARRY,
    U,
    factor_error,
    further,
    joined,
)
from scancheck.bounds.log_masked import decay_error, sum_error
from scancheck.bounds.log_prefix import exponential, lost_below, scaled_loss
from scancheck.oracles.jit import jit

# Rows of a kept state beyond the packed number: see `log_entry.write_state`.
KEPT_SUM, KEPT_OFF, KEPT_SHARE, KEPT_RHO = range(4, 8)


@jit()
def _factor(kept, sign, c):
    """Relative and absolute error of exp(sign c_t), or of p_t**sign, and its range."""
    total, off = kept[KEPT_SUM], kept[KEPT_OFF]
    if c[FORM] == FACTORED:
        return exponential(sign * total, off, c)
    if c[FORM] == RENORMALISED:
        return c[EXP0] + c[EXP1] * (abs(total) + off), 0.0, 1.0, 1.0
    size = abs(total) if sign > 0.0 else 1.0 / abs(total)
    return 0.0, 0.0, size * np.exp(-off), size * np.exp(off)


@jit()
def _join(s, h, at, lt, wt, yt, kept, c, table):
    """The cotangent of the next step towards the start joins the chunk's history."""
    h[LOG, at] = np.log(abs(wt[0])) if c[FORM] == RATIO else lt[0]
    h[DECAY, at], h[SHARE, at], h[RHO, at] = (
        abs(wt[0]),
        kept[KEPT_SHARE],
        kept[KEPT_RHO],
    )
    h[DRIVE, at], h[DRIVE_ERROR, at], h[OWN, at] = yt[1], yt[2], 0.0
    if at == 0:
        h[DRIVE, 0] += s[START_SIZE]
        error = h[DRIVE_ERROR, 0] + s[START_ERROR]
        error += c[U] * (h[DRIVE, 0] + error) + c[ADD_ETA]
        if c[LEAD] > 0.0:
            # The read of the state that is carried in belongs to the chunk after.
            error += c[STATE_U] * (h[DRIVE, 0] + error) + c[STATE_ETA]
        h[DRIVE_ERROR, 0] = error
        s[INNER] = s[INNER_FLOOR] = 0.0
    if c[FORM] in (DIFFERENCE, MASKED):
        return
    own, lost, low, high = _factor(kept, 1.0, c)
    h[OWN, at] = own
    top, least = h[DRIVE, at] + h[DRIVE_ERROR, at], h[DRIVE, at] - h[DRIVE_ERROR, at]
    if c[FORM] == RENORMALISED:
        h[DRIVE_ERROR, at] += scaled_loss(least, c)
        return
    s[INNER_FLOOR] += lost * top + lost_below(low * least, c[ETA], c[NORMAL])
    s[INNER_FLOOR] += c[ADD_ETA]
    s[INNER] += high * top
    s[LASTING] = raised(s[LASTING], s[INNER] * (1.0 + table[at, GROWTH]))
    if not high <= c[CAST_LARGEST]:
        s[LASTING] = np.inf


@jit()
def _summed(s, h, at, first, edge, kept, c, table):
    """Error of G_j, or of Sbar at the `edge` of the chunk, and the largest factor.

    `first`: position in the forward's chunk of the step that joined last.
    """
    form, growth = c[FORM], table[at, GROWTH]
    own = rho = e = top = lost = 0.0
    f, d, theta, partial, path, rise, fall = 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    if not edge:
        own, rho = h[OWN, at], h[RHO, at]
    for back in range(at + 1):
        t, terms = at - back, back + 1 if edge else back
        if terms > 0:
            log, share = h[LOG, t], h[SHARE, t]
            f = further(f, d, h[DECAY, t], log)
            d += log
            theta += share
            path += abs(log) + share
            rise += max(0.0, log + share)
            fall += max(0.0, share - log)
        off = theta + later_rho(h, t, c) + rho if terms > 0 else 0.0
        if form == MASKED:
            if terms > 0:
                partial = sum_error(
                    partial + share, terms, first + back, d, path, theta, c, table
                )
            fe = decay_error(f, d, partial, rise, fall, c)
        elif form == DIFFERENCE:
            if back > 0 and not edge:
                off += c[U] * (abs(d) + off) + c[ADD_ETA]
            fe = factor_error(f, d, off, c)
        else:
            both = own + h[OWN, t] + own * h[OWN, t]
            fe = f * (np.expm1(off) * (1.0 + both) + both)
        if f > 0.0 or fe > 0.0:
            e += joined(f, fe, h[DRIVE, t], h[DRIVE_ERROR, t], growth)
        lost += c[ETA] + c[ADD_ETA]
        top = max(top, f + fe)
    if form in (DIFFERENCE, MASKED):
        return e + lost * (1.0 + growth), top
    away, high = 0.0, 1.0
    if not edge:
        _, away, _, high = _factor(kept, -1.0, c)
    inside = away * s[INNER] + s[INNER_FLOOR] * high + c[ETA]
    return e + inside * (1.0 + growth), high


@jit()
def _open_before(s, h, at, here, wt, value, kept, c, table, chunk, every):
    """Sbar of the chunk that starts at `here`, in the format states are kept in."""
    e, top = _summed(s, h, at, 0, True, kept, c, table)
    s[START_SIZE] = abs(wt[0]) * (s[SIZE] if c[TREE_CARRY] > 0.0 else abs(value))
    s[CHUNKS] += 1.0
    if c[TREE_CARRY] > 0.0:
        # Products of whole chunks' decays may underflow before they meet a cotangent.
        e += s[CHUNKS] * c[ETA] * s[REACH]
    size = s[START_SIZE] + e
    if c[STATE_U] > 0.0 and here % every < chunk:
        e += c[STATE_U] * size + c[STATE_ETA]
        if not size <= c[STATE_LARGEST]:
            e = np.inf
    s[START_ERROR] = e
    s[LASTING] = raised(s[LASTING], max(abs(wt[0]) * s[SIZE] + e, top))
    if not top <= c[CAST_LARGEST]:
        s[LASTING] = np.inf


@jit()
def _step(s, h, at, first, moved, yt, value, kept, c, table):
    """Error and peak of G_j, `moved` the decay of the step after it."""
    s[SIZE] = moved * s[SIZE] + yt[1]
    s[LASTING] = raised(s[LASTING], yt[3])
    e, top = _summed(s, h, at, first, False, kept, c, table)
    s[REACH] = max(moved * s[REACH], s[SIZE] + e)
    size = abs(value) if c[FORM] == RENORMALISED else s[SIZE]
    peak = raised(s[LASTING], max(top, size + e))
    return e, peak if top <= c[CAST_LARGEST] else np.inf


@jit()
def _at_start(s, yt, c):
    """Error and peak of the initial state's cotangent, where it is read itself."""
    size, e = s[START_SIZE] + yt[1], s[START_ERROR] + yt[2]
    e += c[U] * (size + e) + c[ADD_ETA]
    return e, raised(raised(s[LASTING], yt[3]), size + e)


@jit()
def run_from_start(
    log, w, y, g, states, s, h, above, c, table, out, start, total, every, begin, stop
):
    """Runs the transposed sums over a tile, from its last step.

    g [4, T, G, K, L]: the adjoint's exact values; out [3, T + 1, G, K, L]: error and
    peak of G_1..G_T of the tile and, where it is the first one, of S_0's, and the sum
    that exp(-c_t), or 1 / p_t, multiplies; s [COMPONENTS, G, K, L], h [HISTORY, chunk,
    G, K, L] and above [G, K, L], the decay of the step after the tile, in place.
    """
    _, groups, keys, lanes = s.shape
    steps, chunk = y.shape[2], h.shape[1]
    for task in range(begin, stop):
        i, lane = task // lanes, task % lanes
        for k in range(keys):
            one, past = s[:, i, k, lane].copy(), h[:, :, i, k, lane].copy()
            moved = above[i, k, lane]
            for back in range(steps):
                t = steps - 1 - back
                here = start + t
                if here < 0:
                    # A read of the initial state, before any step.
                    yt = pick(y, i, t, k, lane)
                    e, peak = _at_start(one, yt, c)
                    out[0, :2, i, k, lane], out[1, :2, i, k, lane] = e, peak
                    continue
                first = here % chunk
                at = min(total, here - first + chunk) - 1 - here
                lt, wt = pick(log, i, t, k, lane), pick(w, i, t, k, lane)
                yt, kept = pick(y, i, t, k, lane), states[:, t + 1, i, k, lane]
                value = g[0, t, i, k, lane]
                if not abs(kept[KEPT_SUM]) < np.inf:
                    one[BROKEN] = 1.0
                if one[BROKEN] > 0.0:
                    out[:, t + 1, i, k, lane] = np.inf
                    out[:, 0, i, k, lane] = np.inf
                    continue
                _join(one, past, at, lt, wt, yt, kept, c, table)
                out[0, t + 1, i, k, lane], out[1, t + 1, i, k, lane] = _step(
                    one, past, at, first, moved, yt, value, kept, c, table
                )
                out[2, t + 1, i, k, lane] = one[INNER]
                if first == 0:
                    _open_before(
                        one, past, at, here, wt, value, kept, c, table, chunk, every
                    )
                if here == 0:
                    out[0, 0, i, k, lane] = one[START_ERROR]
                    out[1, 0, i, k, lane] = one[LASTING]
                moved = abs(wt[0]) + wt[2]
            s[:, i, k, lane], h[:, :, i, k, lane] = one, past
            above[i, k, lane] = moved
