"""The error of a chunk in log space: decays as exponentials of differences of sums.

Inside a chunk, with c the running sum of the log gates l,

    S_t = exp(c_t) S_in + sum over j <= t of exp(c_t - c_j) x_j.

A computed exponent c_t - c_j is off by theta, and its exponential by the factor
exp(theta) (1 + e0 + e1 |c_t - c_j|), valid for any size of theta. Errors of the gates
themselves are common to both sums and cancel outside (j, t]; so do the roundings of a
sum formed in order, but not those of a tree:

    in order    theta_tj = sum over i in (j, t] of (error of l_i + u |c_i|)
    tree        theta_tj = sum over i in (j, t] of error of l_i  +  rho_t + rho_j,
                rho_t = ((1 + u)^D - 1) sum over i <= t of |l_i|, D additions

and each has u |c_t - c_j| for the difference. To first order these are the terms K, X
and D (G M + V) of numerics 2.5. Terms are then multiplied, added in any order (at most
t additions and the carry), and carried as S_in to the next chunk.

State of one entry, and what is kept of each step of the present chunk:
"""

import numpy as np

from scancheck.bounds.error_scan import raised
from scancheck.bounds.error_tile import pick, read_out
from scancheck.oracles.jit import jit

# S_t; M_t; bound on its error; size and error of S_in; c_t and its error; the sum of
# |l|; max of |P(k, t)| (M_k + error); chunks so far; peak; whether c is not a number.
COMPONENTS = 12
(
    VALUE, SIZE, ERROR, START_SIZE, START_ERROR, SUM, SUM_ERROR, PATH, REACH, CHUNKS,
    PEAK, BROKEN,
) = range(COMPONENTS)  # fmt: skip

# l_i and exp(l_i); its share of theta; rho_i; magnitude and error of x_i.
HISTORY = 6
LOG, DECAY, SHARE, RHO, DRIVE, DRIVE_ERROR = range(HISTORY)

COEFFICIENTS = 14
(
    U, ETA, ADD_ETA, STATE_U, STATE_ETA, STATE_LARGEST, EXP0, EXP1, CAST_U, CAST_ETA,
    CAST_LARGEST, IN_ORDER, TREES, TREE_CARRY,
) = range(COEFFICIENTS)  # fmt: skip

# By position in the chunk: (1 + u)^(product and additions), and rho / sum of |l|.
POSITION_COLUMNS = 2
GROWTH, RHO_FACTOR = range(POSITION_COLUMNS)

_SMALL = 2.0**-10
_SAFE = 1e280  # products of decays between its inverse and it are not near fp64's ends


@jit()
def _factor_error(f, d, theta, c):
    """The error of the computed f = exp(d) when d is off by theta."""
    own = c[EXP0] + c[EXP1] * (abs(d) + theta)
    if theta < _SMALL:
        # expm1(x) <= x + x^2 here.
        e = f * (theta * (1.0 + theta) * (1.0 + own) + own)
    else:
        e = max(np.exp(d + theta) * (1.0 + own) - f, f * own)
    return e + c[CAST_U] * (f + e) + c[ETA] + c[CAST_ETA]


@jit()
def _further(f, d, step, log):
    """exp(d + log) from f = exp(d), by a product where that is safe."""
    f *= step
    return f if 1.0 / _SAFE < f < _SAFE else np.exp(d + log)


@jit()
def _joined(f, fe, size, e, growth):
    """Error of (f, fe) times (size, e), product and additions rounded."""
    exact = f * size
    moved = f * e + fe * (size + e)
    return moved * (1.0 + growth) + growth * exact


@jit()
def _open_chunk(s, c, here, chunk, every):
    """The state becomes S_in, rounded into the format it is kept in."""
    size = abs(s[VALUE])
    if c[STATE_U] > 0.0 and here % every < chunk:
        top = size + s[ERROR]
        s[ERROR] += c[STATE_U] * top + c[STATE_ETA]
        if not (top <= c[STATE_LARGEST]):
            s[PEAK] = np.inf
    s[START_SIZE] = s[SIZE] if c[TREE_CARRY] > 0.0 else size
    s[START_ERROR] = s[ERROR]
    s[SUM] = s[SUM_ERROR] = s[PATH] = 0.0
    s[CHUNKS] += 1.0


@jit()
def _extend_sum(s, h, at, log, log_error, c, table):
    """The running sum of log gates, one gate longer."""
    s[SUM] += log
    s[PATH] += abs(log) + log_error
    h[LOG, at], h[RHO, at], share = log, 0.0, log_error
    if c[IN_ORDER] == 0.0:
        h[RHO, at] = table[at, RHO_FACTOR] * s[PATH] + at * c[ADD_ETA]
    elif at > 0:
        before = s[SUM_ERROR] + log_error + c[U] * abs(s[SUM]) + c[ADD_ETA]
        share += c[U] * (abs(s[SUM]) + before / (1.0 - c[U])) + c[ADD_ETA]
    h[SHARE, at] = share
    s[SUM_ERROR] += share
    s[PEAK] = raised(s[PEAK], abs(s[SUM]) + s[SUM_ERROR] + h[RHO, at])


@jit()
def _state_error(s, h, at, c, table):
    """Error of S_t from all terms of the chunk, and the largest exponential."""
    u, growth = c[U], table[at, GROWTH]
    d = theta = e = top = lost = 0.0
    f = 1.0
    for back in range(at + 1):
        j = at - back
        off = 0.0
        if back > 0:
            off = theta + h[RHO, at] + h[RHO, j]
            off += u * (abs(d) + off) + c[ADD_ETA]
        fe = _factor_error(f, d, off, c)
        e += _joined(f, fe, h[DRIVE, j], h[DRIVE_ERROR, j], growth)
        lost += c[ETA] + c[ADD_ETA]
        top = max(top, f + fe)
        f = _further(f, d, h[DECAY, j], h[LOG, j])
        d += h[LOG, j]
        theta += h[SHARE, j]
    fe = _factor_error(f, d, theta + h[RHO, at], c)
    e += _joined(f, fe, s[START_SIZE], s[START_ERROR], growth)
    lost += c[ETA] + c[ADD_ETA]
    if c[TREE_CARRY] > 0.0:
        # Products of whole chunks' decays may underflow before they meet a state.
        lost += s[CHUNKS] * c[ETA] * s[REACH]
    return e + lost * (1.0 + growth), max(top, f + fe)


@jit()
def push(s, h, log, log_error, w, x, xm, xe, peak, c, table, here, chunk, every):
    """One step on one entry's components and history, in place; `w` is exp(log)."""
    at = here % chunk
    if at == 0:
        _open_chunk(s, c, here, chunk, every)
    s[PEAK] = raised(s[PEAK], peak)
    s[VALUE] = w * s[VALUE] + x
    s[SIZE] = abs(w) * s[SIZE] + xm
    if not abs(log) < np.inf:
        # inf - inf: every later difference, and every later chunk, has no value.
        s[BROKEN] = 1.0
    if s[BROKEN] > 0.0:
        s[ERROR] = s[PEAK] = np.inf
        return
    _extend_sum(s, h, at, log, log_error, c, table)
    h[DECAY, at], h[DRIVE, at], h[DRIVE_ERROR, at] = w, xm, xe
    s[REACH] = max(np.exp(log + log_error) * s[REACH], s[SIZE] + s[ERROR])
    e, top = _state_error(s, h, at, c, table)
    s[ERROR] = e
    if not top <= c[CAST_LARGEST]:
        s[PEAK] = np.inf
    s[PEAK] = raised(s[PEAK], max(top, s[SIZE] + e))


@jit()
def write_state(states, t, g, k, lane, s, c):
    """Entry t of the kept states."""
    states[0, t, g, k, lane] = s[VALUE]
    states[1, t, g, k, lane] = s[SIZE] if c[TREES] > 0.0 else abs(s[VALUE])
    states[2, t, g, k, lane] = s[ERROR]
    states[3, t, g, k, lane] = s[PEAK]


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
    for task in range(begin, stop):
        g, lane = task // lanes, task % lanes
        for k in range(keys):
            one, past = s[:, g, k, lane].copy(), h[:, :, g, k, lane].copy()
            if keep:
                write_state(states, 0, g, k, lane, one, c)
            for t in range(steps):
                lt, xt = pick(log, g, t, k, lane), pick(x, g, t, k, lane)
                push(
                    one, past, lt[0], lt[2], pick(w, g, t, k, lane)[0], xt[0], xt[1],
                    xt[2], raised(lt[3], xt[3]), c, table, start + t, chunk, every,
                )  # fmt: skip
                size = one[SIZE] if c[TREES] > 0.0 else abs(one[VALUE])
                if keep:
                    write_state(states, t + 1, g, k, lane, one, c)
                if has_r:
                    rt = pick(r, g, t, k, lane)
                    read_out(
                        o, g, t, lane, rt, one[VALUE], size, one[ERROR], one[PEAK], c
                    )
                else:
                    o[0, g, t, lane] = one[VALUE]
                    o[1, g, t, lane] = size
                    o[2, g, t, lane] = one[ERROR]
                    o[3, g, t, lane] = one[PEAK]
            s[:, g, k, lane], h[:, :, g, k, lane] = one, past


@jit()
def run_adjoint(
    log, w, y, s, h, above, c, table, states, start, total, every, begin, stop
):
    """Runs G_t = w_{t+1} G_{t+1} + y_t back, tasks begin..stop, chunks from the end.

    `above` [5, G, K, L]: the log gate of step t + 1 as a packed number, and its decay.
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
                push(
                    one, past, up[0], up[2], up[4], yt[0], yt[1], yt[2],
                    raised(up[3], yt[3]), c, table, done, chunk, every,
                )  # fmt: skip
                write_state(states, t, g, k, lane, one, c)
                up[:4] = pick(log, g, t, k, lane)
                up[4] = pick(w, g, t, k, lane)[0]
            s[:, g, k, lane], h[:, :, g, k, lane] = one, past
            above[:, g, k, lane] = up
