"""Signed log-cumsum-exp over the whole length (Heinsen 2023).

    k_j = log|x_j| - c_j, k_0 = log|S_0|,   S_t = z_t exp(c_t + e_t)

with (z_t, e_t) the sign and logarithm of the running sum V_t of sign_j exp(k_j). Its
error is kept in the linear domain, where cancellation is harmless: as a bound on
|V_t exp(c_t) - S_t| for the computed V_t and c_t, in which errors of c that both sides
share cancel, as for differences. What an addition of X and Y, |Y| <= |X|, loses:

    d = k_Y - k_X and exp(d)      |Y| (u |d| + e0 + e1 |d|),  |d| = log|X / Y|
    log(1 +- exp(d))              |X + Y| (ln's error at log|(X + Y) / X|)
    the new logarithm k           |X + Y| u |k|,              k = log|X + Y| - c_t

Sizes are known as upper bounds only; v |log(v / x)| for v below such a bound is at most
its value there, or x / e, which is why each logarithm counts as 5/4 at least. In trees
an addition may meet any interval of terms: it loses no more than this for the sums of
magnitudes and the largest |k| (the additions on a path times M, numerics 2.2). Only a
sum of log gates or a state can leave the range.
"""

import numpy as np

from scancheck.bounds.error_scan import raised
from scancheck.bounds.log_entry import (
    ADD_ETA,
    BROKEN,
    CHUNKS,
    DEPTH,
    ERROR,
    ETA,
    EXP0,
    EXP1,
    HIGH_SPAN,
    IN_ORDER,
    INNER,
    LASTING,
    LN0,
    LN1,
    NEW_RHO,
    NEW_SHARE,
    PATH,
    PEAK,
    SIZE,
    SUM,
    SUM_ERROR,
    SUM_GROWTH,
    VALUE,
    U,
)
from scancheck.oracles.jit import jit

_LEAST = 1.25  # more than 1 / (1 - n u) for all roundings of one step
# v max(5/4, log(x / v)) <= 5/4 v + x / e for v <= x, and v <= 2 x for a sum.
_RATIO = 1.0 / np.e


@jit()
def length(v, reference):
    """|log v - reference|, or 5/4."""
    return max(_LEAST, abs(np.log(v) - reference)) if v > 0.0 else _LEAST


@jit()
def floor(c):
    """Absolute errors of an exponent by underflow of the few results that form it."""
    return 4.0 * (c[ETA] + c[ADD_ETA])


@jit()
def logarithm(top, off, total, c):
    """Log-relative error of k = log v - c and a bound on |k|, for v up to `top`."""
    theta = c[LN0] * length(top, 0.0) + c[LN1] + floor(c)
    size = length(top, total) + off + theta
    return theta + c[U] * size / (1.0 - c[U]), size


@jit()
def sum_in_order(a, b, value, e, off, total, c):
    """Error of the sum of two numbers of at most a and b, themselves off by e."""
    u, x, y = c[U], max(a, b), min(a, b)
    e += x * floor(c)
    if y > 0.0:
        d = max(_LEAST, np.log(x / y))
        own = c[EXP0] + c[EXP1] * d * (1.0 + u)
        e += y * (np.expm1(u * d) * (1.0 + own) + own)
    top = abs(value) + e
    theta = c[LN0] * length(top, np.log(x)) + c[LN1] + floor(c)
    theta += u * (length(top, total) + off + theta) / (1.0 - u)
    return e + top * np.expm1(theta)


@jit()
def tree_growth(depth, largest_log, items, c):
    """(1 + what one addition loses)^depth - 1, on sums of magnitudes."""
    if depth == 0.0:
        return 0.0
    u = c[U]
    share = (_LEAST + _RATIO) * (u / (1.0 - u) + (c[EXP0] + c[EXP1]) * (1.0 + 4.0 * u))
    share += (_LEAST + _RATIO) * c[LN0] + c[LN1] + 2.0 * floor(c)
    share += u * (largest_log + np.log(items) + share) / (1.0 - u)
    return np.expm1(depth * share)


@jit()
def _start(s, c):
    """The logarithm of the initial state."""
    top = s[SIZE] + s[ERROR]
    if top > 0.0:
        theta, size = logarithm(top, 0.0, 0.0, c)
        s[INNER] = s[ERROR] + top * np.expm1(theta)
        s[HIGH_SPAN] = size
    else:
        s[INNER] = s[HIGH_SPAN] = 0.0
    s[LASTING] = s[PEAK]
    s[SUM] = s[SUM_ERROR] = s[PATH] = 0.0
    s[CHUNKS] = 1.0


@jit()
def run_no_step(s, c):
    """The initial state's way through its logarithm and back, [COMPONENTS, N]."""
    for n in range(s.shape[1]):
        one = s[:, n].copy()
        _start(one, c)
        _read_state(one, one[INNER], c)
        s[:, n] = one


@jit()
def push(s, lt, wt, xt, c, table, here):
    """One step on one entry's components, in place; `here` steps came before."""
    if s[CHUNKS] == 0.0:
        _start(s, c)
    log, u, in_order = lt[0], c[U], c[IN_ORDER] > 0.0
    moved, spread = wt[0] * s[VALUE], abs(wt[0]) * s[SIZE]
    s[VALUE], s[SIZE] = moved + xt[0], spread + xt[1]
    s[LASTING] = raised(s[LASTING], xt[3])
    if not abs(log) < np.inf:
        s[BROKEN] = 1.0
    if s[BROKEN] > 0.0:
        s[ERROR] = s[PEAK] = np.inf
        return
    s[SUM] += log
    s[PATH] += abs(log) + lt[2]
    share, rho, held = lt[2], 0.0, 0.0
    if not in_order:
        rho = table[here, SUM_GROWTH] * s[PATH] + here * c[ADD_ETA]
    elif here > 0:
        before = s[SUM_ERROR] + share
        # c_t may be held in more digits and rounded where it is read.
        held = u * (abs(s[SUM]) + before) / (1.0 - u) + c[ADD_ETA]
        share += held
    s[SUM_ERROR] += share
    s[NEW_SHARE], s[NEW_RHO] = share, rho + held
    off = s[SUM_ERROR] + rho
    s[LASTING] = raised(s[LASTING], abs(s[SUM]) + off)
    shift = np.expm1(share)
    inherited = abs(wt[0]) * s[INNER] * (1.0 + shift)
    inherited += shift * (abs(moved) if in_order else spread)
    new, top = xt[2], xt[1] + xt[2]
    if top > 0.0:
        theta, size = logarithm(top, off, s[SUM], c)
        new += top * np.expm1(theta + rho + held)
        s[HIGH_SPAN] = max(s[HIGH_SPAN], size)
    if in_order:
        e = inherited + new
        if s[HIGH_SPAN] > 0.0:
            # With one operand zero too: its logarithm's error is absolute.
            a, b = abs(moved) + inherited, xt[1] + new
            e = sum_in_order(a, b, s[VALUE], e, off, s[SUM], c)
        s[INNER] = e
    else:
        s[INNER] = inherited + new
        grown = tree_growth(table[here, DEPTH], s[HIGH_SPAN], here + 2.0, c)
        both = np.expm1(rho) * (1.0 + grown) + grown
        e = s[INNER] * (1.0 + both) + s[SIZE] * both
    _read_state(s, e, c)


@jit()
def _read_state(s, e, c):
    """S_t = exp(c_t + e_t): the exponent rounded, then exp's own error."""
    top = abs(s[VALUE]) + e
    size = length(top, 0.0)
    own = c[EXP0] + c[EXP1] * size * (1.0 + c[U])
    off = np.expm1(c[U] * size + floor(c))
    s[ERROR] = e + top * (off * (1.0 + own) + own) + c[ETA]
    s[PEAK] = raised(s[LASTING], abs(s[VALUE]) + s[ERROR])
