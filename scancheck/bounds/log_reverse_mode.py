"""Reverse mode through a log-cumsum-exp: its logs are counted from the start.

What `log_whole` runs forwards, S_t = exp(c_t + L_t) with L the running log-sum of
k_j = log x_j - c_j, has the chain rule (torch's logcumsumexp_backward, for one)

    q_t = log(S_t y_t) - L_t        y_t the cotangent of S_t as it is read
    K_j = running log-sum of q from the end to j
    xbar_j = exp(K_j + k_j) / x_j

S_t is computed from c_t + L_t, so that whatever error L_t has cancels in q_t, which is
log y_t + c_t: G_j is the sum of exp(c_t - c_j) y_t, as in an explicit adjoint, but with
the c of the forward, which counts from the start of the sequence. With t > j

    in order    theta_tj = sum over i in (j, t] of (error of l_i + u |c_i|)
    tree        theta_tj = sum over i of error of l_i  +  rho_t + rho_j

where a scan that is run backwards has the sum of the gates from i to the end for c_i
(numerics 2.5; rho as in `log_difference`). Beside what the log-sum itself loses, q_t
has exp's error, ln's at |log S_t| + |log y_t|, and roundings of c_t + L_t and q_t; the
result has ln's error of k_j and exp's at |log x_j G_j|. S_t, S_t y_t and x_j G_j may
underflow, which S_t or x_j then divides. Sums are of magnitudes, for real numbers are
added as two sums, one for each sign. A zero has no logarithm, be it x_j or a state that
cancels exactly: reverse mode has NaN there, and no bound covers that.
"""

import numpy as np

from scancheck.bounds.error_scan import raised
from scancheck.bounds.error_tile import pick
from scancheck.bounds.log_entry import (
    ADD_ETA,
    DEPTH,
    ETA,
    EXP0,
    EXP1,
    IN_ORDER,
    LN0,
    LN1,
    U,
)
from scancheck.bounds.log_whole import (
    floor,
    length,
    logarithm,
    sum_in_order,
    tree_growth,
)
from scancheck.oracles.jit import jit

# Of the running sum in the linear domain: sum of magnitudes; its error, for trees
# without that of the additions; largest |q|; largest intermediate result so far.
COMPONENTS = 4
SIZE, INNER, LARGEST_LOG, TOP = range(COMPONENTS)

# Rows of a kept state: see `log_entry.write_state`.
VALUE, _, ERROR, PEAK, SUM, OFF, SHARE, RHO = range(8)

# |log p - c| of two parts p of v: p |log p - c| summed is at most v (|log v - c| + it).
_PARTS = np.log(2.0)


@jit()
def _smallest_state(states, t, g, k, lane, w, x, xe, c):
    """A lower bound of |S_t| as computed, unless it is exactly zero.

    Of two operands of a signed log-sum 1 - r is zero or at least u / 2.
    """
    low = max(0.0, abs(states[VALUE, t, g, k, lane]) - states[ERROR, t, g, k, lane])
    before = abs(states[VALUE, t - 1, g, k, lane]) - states[ERROR, t - 1, g, k, lane]
    return max(low, 0.5 * c[U] * max(x - xe, w * before))


@jit()
def _new_error(y, ye, low, high, kept, c):
    """Error of exp(q_t) for a cotangent of size y, and a bound on |q_t|.

    |S_t| is from `low` to `high`; `kept` are the rows of its state.
    """
    if y + ye == 0.0:
        return 0.0, 0.0
    u, top = c[U], y + ye
    span = max(length(high, 0.0), length(low, 0.0))
    own = c[EXP0] + c[EXP1] * span * (1.0 + u) + 2.0 * u
    theta = u * span + c[LN0] * (length(top, 0.0) + span) + c[LN1] + floor(c)
    size = length(top, -kept[SUM]) + kept[OFF] + theta
    theta += u * size / (1.0 - u) + kept[RHO]
    relative = np.expm1(theta) * (1.0 + own) + own
    lost = c[ETA] * (1.0 + top) / low if low > 0.0 else 0.0
    return ye + top * relative + (1.0 + relative) * lost, size


@jit()
def add(s, w, share, y, ye, low, kept, c, table, done):
    """One step further towards the start; returns the error of its G.

    w and share are those of the step after it; `done` steps came before this one.
    """
    shift, moved = np.expm1(share), w * s[SIZE]
    inherited = w * s[INNER] * (1.0 + shift) + shift * moved
    high = abs(kept[VALUE]) + kept[ERROR]
    new, log = _new_error(y, ye, low, high, kept, c)
    s[SIZE] = moved + y
    s[LARGEST_LOG] = max(s[LARGEST_LOG], log)
    e = inherited + new
    if c[IN_ORDER] > 0.0:
        if s[SIZE] + e > 0.0:
            off = kept[OFF] + _PARTS
            e = sum_in_order(moved + inherited, y + new, s[SIZE], e, off, -kept[SUM], c)
        s[INNER] = e
    else:
        s[INNER] = e
        grown = tree_growth(table[done, DEPTH], s[LARGEST_LOG] + _PARTS, done + 2.0, c)
        e = e * (1.0 + grown) + s[SIZE] * grown
    s[TOP] = raised(s[TOP], raised(kept[PEAK], high * (y + ye)))
    if not kept[ERROR] < np.inf:
        s[INNER] = e = np.inf
    return e


@jit()
def _quotient(size, e, x, xe, total, off, rho, c):
    """Error and peak of exp(K_j + k_j) / x_j from those of the sum."""
    u, top = c[U], size + e
    if x == 0.0:
        return e, top
    low = x - xe
    if not low > 0.0:
        # Flushed to zero it has no logarithm, and 0 / 0 is no number.
        return np.inf, np.inf
    theta, _ = logarithm(x, off, total, c)
    span = length(top * x, 0.0) + _PARTS
    own = c[EXP0] + c[EXP1] * span * (1.0 + u)
    theta += rho + u * span / (1.0 - u) + floor(c)
    e += top * (np.expm1(theta) * (1.0 + own) + own)
    e += 2.0 * u * (size + e) + 2.0 * (c[ETA] + c[ADD_ETA]) / low
    return e, raised(max(size + e, 1.0 / low), (size + e) * (x + xe))


@jit()
def run_no_step(first, bar, c, out):
    """Error and peak [2, N] of S_0's cotangent where no step was taken.

    first: the state as it is returned, bar: its cotangent; value to peak, [4, N].
    """
    for n in range(first.shape[1]):
        kept = np.zeros(8)
        kept[:4] = first[:, n]
        x = abs(kept[VALUE])
        high, size = x + kept[ERROR], bar[1, n]
        low = max(0.0, x - kept[ERROR])
        e, _ = _new_error(size, bar[2, n], low, high, kept, c)
        out[0, n], out[1, n] = _quotient(size, e, x, 0.0, 0.0, 0.0, 0.0, c)
        out[1, n] = raised(raised(out[1, n], kept[PEAK]), high * (size + bar[2, n]))


@jit()
def run_from_start(w, x, y, states, s, above, c, table, out, start, total, begin, stop):
    """Runs the sum over a tile, from its last step; `log_tile.run_adjoint` beside.

    out [2, T + 1, G, K, L]: error and peak of G_1..G_T of the tile and, where it is
    the first one, of S_0's; s [COMPONENTS, G, K, L] and above [2, G, K, L], decay and
    share of the step after the tile, in place.
    """
    _, groups, keys, lanes = s.shape
    steps = x.shape[2]
    for task in range(begin, stop):
        g, lane = task // lanes, task % lanes
        for k in range(keys):
            one = s[:, g, k, lane].copy()
            decay, share = above[:, g, k, lane]
            for back in range(steps):
                t = steps - 1 - back
                done = total - 1 - (start + t)
                wt, xt = pick(w, g, t, k, lane), pick(x, g, t, k, lane)
                yt = pick(y, g, t, k, lane)
                size, error = yt[1], yt[2]
                if done == 0:
                    # The final state's cotangent joins the last step's.
                    size += one[SIZE]
                    error += one[INNER] + c[U] * (size + error) + c[ADD_ETA]
                    one[SIZE] = one[INNER] = 0.0
                w_size = abs(wt[0])
                low = _smallest_state(
                    states, t + 1, g, k, lane, w_size, xt[1], xt[2], c
                )
                kept = states[:, t + 1, g, k, lane]
                e = add(one, decay, share, size, error, low, kept, c, table, done)
                out[0, t + 1, g, k, lane], peak = _quotient(
                    one[SIZE], e, xt[1], xt[2], kept[SUM], kept[OFF], kept[RHO], c
                )
                out[1, t + 1, g, k, lane] = raised(one[TOP], peak)
                decay, share = w_size, kept[SHARE]
            if start == 0:
                shift, moved = np.expm1(share), decay * one[SIZE]
                e = decay * one[INNER] * (1.0 + shift) + shift * moved
                if c[IN_ORDER] == 0.0:
                    grown = tree_growth(
                        table[total - 1, DEPTH], one[LARGEST_LOG] + _PARTS, total, c
                    )
                    e = e * (1.0 + grown) + moved * grown
                first = states[:, 0, g, k, lane]
                out[0, 0, g, k, lane], peak = _quotient(
                    moved, e, abs(first[VALUE]), first[ERROR], 0.0, 0.0, 0.0, c
                )
                out[1, 0, g, k, lane] = raised(one[TOP], peak)
            s[:, g, k, lane] = one
            above[0, g, k, lane], above[1, g, k, lane] = decay, share
