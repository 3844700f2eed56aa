"""Compiled exp, softplus and sigmoid of double-double numbers, with proven errors.

exp reduces its argument by Cody and Waite's method and looks up two tables (Tang,
"Table-driven implementation of the exponential function", ACM TOMS 15, 1989):
x = m log(2) / 4096 + r, exp(x) = 2**e 2**(i / 64) 2**(j / 4096) exp(r), |r| < 2**-13.5.

Error of exp, relative, u = 2**-53: two table entries u**2 each; their product 8 u**2;
exp(r) - 1, whose own error is below 2**-107 (terms from r**4 / 24 < 2**-58.5 on take
ten roundings in plain float64, together 2**-108.2; r itself within 2**-114; the other
double-word operations 2**-115; terms from r**8 left out, 2**-122); the last sum
4 u**2. Together 15 u**2 = 2**-102.1, doubled for the terms of second order.
"""

import math

import mpmath
import numpy as np
from numpy.typing import NDArray

from scancheck.oracles.double_word import (
    TINY,
    Triple,
    add,
    fast_two_sum,
    multiply,
    reciprocal,
    two_sum,
)
from scancheck.oracles.jit import jit

EXP_ERROR = 2.0**-101

_context = mpmath.MPContext()
_context.prec = 400


def _words(exact: mpmath.mpf, count: int) -> list[float]:
    """The leading `count` float64 of a number in the normal range, largest first."""
    words = []
    for _ in range(count):
        words.append(float(exact))
        exact = exact - words[-1]
    return words


def _powers_of_two(parts: int, steps: int) -> NDArray[np.float64]:
    """2**(i / parts) for i < steps as double-doubles, [steps, 2]."""
    rows = [
        _words(_context.mpf(2) ** (_context.mpf(i) / parts), 2) for i in range(steps)
    ]
    return np.array(rows)


_STEP = _context.ln(2) / 4096
PER_STEP = float(1 / _STEP)
# The leading 29 bits, so that their product with an integer below 2**24 is exact.
STEP_1 = math.ldexp(float(_context.floor(_context.ldexp(_STEP, 41))), -41)
STEP_2, STEP_3 = _words(_STEP - STEP_1, 2)
COARSE = _powers_of_two(64, 64)
FINE = _powers_of_two(4096, 64)
SCALES = np.ldexp(1.0, np.arange(-541, 515))  # 2**e as two factors, each in range
THIRD_1, THIRD_2 = _words(_context.mpf(1) / 3, 2)
# 1 / (n + 1) with alternating sign: log1p(t) / t; t**13 / 14 < 2**-107 for t < 2**-8.
LOG1P = np.array([_words(_context.mpf((-1) ** n) / (n + 1), 2) for n in range(13)])
LOG1P_LEFT_OUT = 2.0**-107


@jit(forceinline=True)
def spread(radius: float) -> float:
    """An upper bound of expm1(radius): r + r**2 for r < 1, and infinity beyond."""
    return radius * (1.0 + radius) if radius < 1.0 else math.inf


@jit()
def exp(xh: float, xl: float, xr: float) -> Triple:
    """exp(x); what lies below the fp64 range becomes 0 with a radius."""
    if (xh == 0.0) & (xl == 0.0) & (xr == 0.0):
        return 1.0, 0.0, 0.0
    if not (xh < 710.0):  # overflow, or NaN
        return math.inf, 0.0, math.inf
    if xh < -746.0:
        # exp(-746 + 1) < TINY
        return 0.0, 0.0, TINY if xr < 1.0 else math.inf
    m = np.rint(xh * PER_STEP)
    k = np.int64(m)
    rh, rl = two_sum(xh, -m * STEP_1)
    ph, pl, _ = multiply(-m, 0.0, 0.0, STEP_2, 0.0, 0.0)
    rh, rl, _ = add(rh, rl, 0.0, ph, pl, 0.0)
    ph, pl = two_sum(xl, -m * STEP_3)
    rh, rl, _ = add(rh, rl, 0.0, ph, pl, 0.0)
    # p = r + (r**2 / 2 + (r**3 / 6 + tail))
    sh, sl, _ = multiply(0.5 * rh, 0.5 * rl, 0.0, rh, rl, 0.0)
    ph, pl, _ = multiply(sh, sl, 0.0, rh, rl, 0.0)
    ph, pl, _ = multiply(ph, pl, 0.0, THIRD_1, THIRD_2, 0.0)
    tail = 1 / 24 + rh * (1 / 120 + rh * (1 / 720 + rh / 5040))
    ph, pl, _ = add(ph, pl, 0.0, rh * rh * (rh * rh) * tail, 0.0, 0.0)
    ph, pl, _ = add(sh, sl, 0.0, ph, pl, 0.0)
    ph, pl, _ = add(rh, rl, 0.0, ph, pl, 0.0)
    i, j = (k >> 6) & 63, k & 63
    th, tl, _ = multiply(COARSE[i, 0], COARSE[i, 1], 0.0, FINE[j, 0], FINE[j, 1], 0.0)
    ph, pl, _ = multiply(th, tl, 0.0, ph, pl, 0.0)
    zh, zl, _ = add(th, tl, 0.0, ph, pl, 0.0)
    exponent = k >> 12
    low, high = SCALES[(exponent >> 1) + 541], SCALES[exponent - (exponent >> 1) + 541]
    zh, zl = fast_two_sum(zh * low * high, zl * low * high)
    return zh, zl, zh * (spread(xr) + EXP_ERROR) + 4 * TINY


@jit()
def log1p(th: float, tl: float, tr: float) -> Triple:
    """log(1 + t) for 0 <= t <= 1: a series, or one Newton step on exp.

    Newton's step needs no trust in the fp64 log1p it starts from: with
    e = (1 + t) exp(-y) - 1 the exact result is y + log1p(e), and e is computed.
    """
    if th + tr < 2.0**-8:
        last = LOG1P.shape[0] - 1
        sh, sl, sr = LOG1P[last, 0], LOG1P[last, 1], 2.0**-106
        for n in range(last - 1, -1, -1):
            sh, sl, sr = multiply(sh, sl, sr, th, tl, tr)
            sh, sl, sr = add(sh, sl, sr, LOG1P[n, 0], LOG1P[n, 1], 2.0**-106)
        sh, sl, sr = multiply(sh, sl, sr, th, tl, tr)
        return sh, sl, sr + LOG1P_LEFT_OUT * (sh + sr)
    y = math.log1p(th)
    eh, el, er = add(1.0, 0.0, 0.0, th, tl, tr)
    fh, fl, fr = exp(-y, 0.0, 0.0)
    eh, el, er = multiply(eh, el, er, fh, fl, fr)
    eh, el, er = add(eh, el, er, -1.0, 0.0, 0.0)
    size = abs(eh) + er
    if not (size < 2.0**-20):
        return y, 0.0, math.inf
    # What follows e - e**2 / 2 is below |e|**3; el and er are left out of e**2.
    own = size * (size * size + 2.0**-51 * size + er)
    zh, zl, zr = add(eh, el, er, -0.5 * eh * eh, 0.0, own)
    return add(y, 0.0, 0.0, zh, zl, zr)


@jit()
def softplus(xh: float, xl: float, xr: float) -> Triple:
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))."""
    if xh >= 0.0:
        th, tl, tr = exp(-xh, -xl, xr)
        sh, sl, sr = log1p(th, tl, tr)
        return add(xh, xl, xr, sh, sl, sr)
    th, tl, tr = exp(xh, xl, xr)
    return log1p(th, tl, tr)


@jit()
def sigmoid(xh: float, xl: float, xr: float) -> Triple:
    """1 / (1 + exp(-x)), as exp(x) / (1 + exp(x)) for negative x."""
    if xh >= 0.0:
        th, tl, tr = exp(-xh, -xl, xr)
        th, tl, tr = add(1.0, 0.0, 0.0, th, tl, tr)
        return reciprocal(th, tl, tr)
    th, tl, tr = exp(xh, xl, xr)
    sh, sl, sr = add(1.0, 0.0, 0.0, th, tl, tr)
    sh, sl, sr = reciprocal(sh, sl, sr)
    return multiply(th, tl, tr, sh, sl, sr)


__all__ = ["exp", "log1p", "sigmoid", "softplus", "spread"]
