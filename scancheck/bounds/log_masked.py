"""Masked segment sums: the decay over (j, t] is exp of a sum that starts after j.

No difference is taken, so theta_tj has only what happens inside (j, t]:

    in order    theta_tj = sum over i in (j, t] of error of l_i
                           + u sum over i in (j + 1, t] of |l_{j+1} + ... + l_i|
    tree        theta_tj = sum over i of error of l_i + ((1 + u)^D - 1) sum over i |l_i|

with D at most t - j - 1, for sums with the masked zeros are exact (numerics 2.5; the
sum itself is Mamba-2's, Dao and Gu 2024, section 6). A gate of -inf makes decays zero
exactly, and so does a sum that overflows downwards.
"""

import numpy as np

from scancheck.bounds.log_entry import (
    ADD_ETA,
    BROKEN,
    CHAIN,
    DECAY,
    DRIVE,
    DRIVE_ERROR,
    ETA,
    GROWTH,
    IN_ORDER,
    LARGEST,
    LOG,
    OWN,
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
def extend_columns(s, h, at, log, log_error):
    """One gate more for all sums; they are formed in `state_error`."""
    if not log < np.inf:
        s[BROKEN], s[SUM] = 1.0, np.inf
    h[SHARE, at] = log_error


@jit()
def sum_error(before, terms, at, d, path, share, c, table):
    """Error of a sum of `terms` log gates: exact value d, its gates' errors `share`.

    `before` is the error of the sum one gate shorter.
    """
    if c[IN_ORDER] == 0.0:
        growth = min(table[terms - 1, CHAIN], table[at, SUM_GROWTH])
        return share + growth * path + terms * c[ADD_ETA]
    if terms > 1:
        before += c[U] * (abs(d) + before)
    return before + c[ADD_ETA]


@jit()
def decay_error(f, d, theta, rise, fall, c):
    """The error of a computed decay f = exp(d), which may be lost to an overflow."""
    if f == 0.0 and fall == np.inf:
        return 0.0
    fe = factor_error(f, d, theta, c)
    if fall > c[LARGEST]:
        # The sum may have become -inf on its way.
        fe = max(fe, f)
    return np.inf if rise > c[LARGEST] else fe


@jit()
def state_error(s, h, at, c, table):
    """Error of S_t from all terms of the chunk, and the largest exponential."""
    growth = table[at, GROWTH]
    d = e = top = lost = share = path = rise = fall = 0.0
    f = 1.0
    newest = h[SHARE, at]
    for back in range(at + 1):
        j = at - back
        h[OWN, j] = 0.0 if back == 0 else sum_error(
            h[OWN, j] + newest, back, at, d, path, share, c, table
        )  # fmt: skip
        fe = decay_error(f, d, h[OWN, j], rise, fall, c)
        if f > 0.0 or fe > 0.0:
            e += joined(f, fe, h[DRIVE, j], h[DRIVE_ERROR, j], growth)
        lost += c[ETA] + c[ADD_ETA]
        top = max(top, f + fe)
        log = h[LOG, j]
        f = further(f, d, h[DECAY, j], log)
        d += log
        share += h[SHARE, j]
        path += abs(log) + h[SHARE, j]
        rise += max(0.0, log + h[SHARE, j])
        fall += max(0.0, h[SHARE, j] - log)
    s[SUM_ERROR] = sum_error(
        s[SUM_ERROR] + newest, at + 1, at, d, path, share, c, table
    )
    fe = decay_error(f, d, s[SUM_ERROR], rise, fall, c)
    if f > 0.0 or fe > 0.0:
        e += carried(s, f, fe, at, c, table)
    return e + lost * (1.0 + growth), max(top, f + fe)
