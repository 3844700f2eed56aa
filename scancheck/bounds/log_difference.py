"""Differences of running sums: the decay over (j, t] is exp(c_t - c_j).

A computed exponent c_t - c_j is off by theta. Errors of the gates themselves are common
to both sums and cancel outside (j, t]; so do the roundings of a sum formed in order,
but not those of a tree:

    in order    theta_tj = sum over i in (j, t] of (error of l_i + u |c_i|)  +  rho_j,
                rho_j = u |c_j|
    tree        theta_tj = sum over i in (j, t] of error of l_i  +  rho_t + rho_j,
                rho_t = ((1 + u)^D - 1) sum over i <= t of |l_i|, D additions

and each has u |c_t - c_j| for the difference. rho_j in order is for a running sum that
is held in more digits and rounded where it is read, as `torch.cumsum` does on a CPU: it
is off by u |c_t| + u |c_j| where a sum of rounded steps is off by u |c_t| alone. To
first order these are the terms K, X and D (G M + V) of numerics 2.5.
"""

import numpy as np

from scancheck.bounds.error_scan import raised
from scancheck.bounds.log_entry import (
    ADD_ETA,
    BROKEN,
    DECAY,
    DRIVE,
    DRIVE_ERROR,
    ETA,
    GROWTH,
    IN_ORDER,
    LARGEST,
    LASTING,
    LOG,
    PATH,
    RHO,
    SHARE,
    SUM,
    SUM_ERROR,
    SUM_GROWTH,
    U,
    carried,
    factor_error,
    further,
    joined,
)
from scancheck.oracles.jit import jit


@jit()
def extend_sum(s, h, at, log, log_error, c, table):
    """The running sum of log gates, one gate longer."""
    if not abs(log) < np.inf:
        # inf - inf: every later difference, and every later chunk, has no value.
        s[BROKEN], s[SUM] = 1.0, np.inf
        return
    s[SUM] += log
    s[PATH] += abs(log) + log_error
    h[RHO, at], share = 0.0, log_error
    if c[IN_ORDER] == 0.0:
        h[RHO, at] = table[at, SUM_GROWTH] * s[PATH] + at * c[ADD_ETA]
    elif at > 0:
        before = s[SUM_ERROR] + log_error + c[U] * abs(s[SUM]) + c[ADD_ETA]
        h[RHO, at] = c[U] * (abs(s[SUM]) + before / (1.0 - c[U])) + c[ADD_ETA]
        share += h[RHO, at]
    h[SHARE, at] = share
    s[SUM_ERROR] += share
    top = abs(s[SUM]) + s[SUM_ERROR] + h[RHO, at]
    s[LASTING] = raised(s[LASTING], top)
    if not top <= c[LARGEST]:
        s[BROKEN], s[SUM] = 1.0, np.inf


@jit()
def later_rho(h, t, c):
    """rho_t as it counts at the later end of a difference: in order, theta has it."""
    return h[RHO, t] if c[IN_ORDER] == 0.0 else 0.0


@jit()
def state_error(s, h, at, c, table):
    """Error of S_t from all terms of the chunk, and the largest exponential."""
    u, growth = c[U], table[at, GROWTH]
    d = theta = e = top = lost = 0.0
    f = 1.0
    for back in range(at + 1):
        j = at - back
        off = 0.0
        if back > 0:
            off = theta + later_rho(h, at, c) + h[RHO, j]
            off += u * (abs(d) + off) + c[ADD_ETA]
        fe = factor_error(f, d, off, c)
        e += joined(f, fe, h[DRIVE, j], h[DRIVE_ERROR, j], growth)
        lost += c[ETA] + c[ADD_ETA]
        top = max(top, f + fe)
        f = further(f, d, h[DECAY, j], h[LOG, j])
        d += h[LOG, j]
        theta += h[SHARE, j]
    fe = factor_error(f, d, theta + later_rho(h, at, c), c)
    e += carried(s, f, fe, at, c, table)
    return e + lost * (1.0 + growth), max(top, f + fe)
