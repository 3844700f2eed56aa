"""Compiled double-double arithmetic with an exponent beside it, so nothing underflows.

A number is hi, lo and a radius as in `double_word`, and an integer e: it stands for
(hi + lo) 2**e, within radius 2**e. The larger of |hi| and the radius stays within
2**-200 .. 2**200, or all three are 0; a number of infinite radius is not known at all.
Minus infinity of radius 0 may be stored, for a log gate, and nothing but exp takes it.
So the bounds of `double_word` hold over a range of exponents that no case leaves, where
fp64 and double-double end at 2**-1074 and lose what a decay or a gate needs there.
"""

import math

import mpmath
import numpy as np

from scancheck.oracles import double_word, double_word_functions
from scancheck.oracles.double_word import TINY, Triple
from scancheck.oracles.double_word_functions import log1p as plain_log1p
from scancheck.oracles.jit import jit

Wide = tuple[float, float, float, int]

LEAST, MOST = 2.0**-200, 2.0**200
# Further apart than this, the smaller of two terms only adds to the radius: it is below
# 2**201 2**-700, against a larger one that is not below 2**-200.
APART = 700
FAR = 2.0**-499
# What words lose where they are moved to a smaller exponent: below 2**-1000 they are
# charged for as a whole.
FAINT = 2.0**-1000
FURTHEST = 3000  # 2**e is 0 or infinite in fp64 beyond this, whatever it multiplies

# exp's argument less a multiple of 512 log(2), whose leading word has 30 bits so that
# products with the multiple, below 2**12, are exact.
LARGEST_ARGUMENT = 1e6
PLAIN_ARGUMENT = 300.0  # exp(-300) is far above what exp adds for underflow
PERIOD = 512
_context = mpmath.MPContext()
_context.prec = 400
_PERIOD_LOG = PERIOD * _context.ln(2)
PER_PERIOD = float(1 / _PERIOD_LOG)
PERIOD_1 = math.ldexp(float(_context.floor(_context.ldexp(_PERIOD_LOG, 21))), -21)
PERIOD_2 = float(_PERIOD_LOG - PERIOD_1)
PERIOD_3 = float(_PERIOD_LOG - PERIOD_1 - PERIOD_2)
# exp(-1e6 + 1) is below 2**-1000000, and log1p(t) = t within t 2**-290 for t < 2**-299.
VANISHED = -1_000_000
LINEAR_BELOW = -300
LINEAR_ERROR = 2.0**-290

_plain_exp = double_word_functions.exp
_plain_add = double_word.add
_plain_multiply = double_word.multiply
_plain_reciprocal = double_word.reciprocal
_plain_inverse = double_word.inverse


@jit(forceinline=True)
def _power(exponent: int) -> float:
    """2**exponent, for |exponent| up to 1022."""
    return math.ldexp(1.0, exponent)


@jit()
def normal(h: float, low: float, r: float, e: int) -> Wide:
    """The same number with |hi| or the radius within the bounds."""
    if not ((abs(h) < math.inf) & (r < math.inf)):  # NaN included
        return 0.0, 0.0, math.inf, 0
    size = max(abs(h), r)
    if (size >= LEAST) & (size <= MOST):
        return h, low, r, e
    if size == 0.0:
        return 0.0, 0.0, 0.0, 0
    shift = math.frexp(size)[1]
    # Two factors, for one of 2**1074 does not exist; scaling up is exact.
    half = shift // 2
    one, two = _power(-half), _power(half - shift)
    nh, nl, nr = h * one * two, low * one * two, r * one * two
    if (shift > 0) & ((low != 0.0) | (r != 0.0)):
        nr += FAINT
    return nh, nl, nr, e + shift


@jit()
def _lowered(h: float, low: float, r: float, by: int) -> Triple:
    """The words of a number whose exponent is raised by so much."""
    if by > APART:
        return 0.0, 0.0, FAR
    factor = _power(-by)
    nh, nl, nr = h * factor, low * factor, r * factor
    faint = (h != 0.0) & (abs(nh) < FAINT) | (low != 0.0) & (abs(nl) < FAINT)
    if faint | ((r != 0.0) & (nr < FAINT)):
        nr += FAINT
    return nh, nl, nr


@jit()
def add(
    xh: float, xl: float, xr: float, xe: int, yh: float, yl: float, yr: float, ye: int
) -> Wide:
    """x + y."""
    if (xh == 0.0) & (xr == 0.0):
        return yh, yl, yr, ye
    if (yh == 0.0) & (yr == 0.0):
        return xh, xl, xr, xe
    if not ((xr < math.inf) & (yr < math.inf)):
        return 0.0, 0.0, math.inf, 0
    e = max(xe, ye)
    if xe < e:
        xh, xl, xr = _lowered(xh, xl, xr, e - xe)
    elif ye < e:
        yh, yl, yr = _lowered(yh, yl, yr, e - ye)
    zh, zl, zr = _plain_add(xh, xl, xr, yh, yl, yr)
    return normal(zh, zl, zr, e)


@jit()
def multiply(
    xh: float, xl: float, xr: float, xe: int, yh: float, yl: float, yr: float, ye: int
) -> Wide:
    """x y; zero stays exactly zero."""
    zh, zl, zr = _plain_multiply(xh, xl, xr, yh, yl, yr)
    return normal(zh, zl, zr, xe + ye)


@jit()
def reciprocal(h: float, low: float, r: float, e: int) -> Wide:
    """1 / x, with no end where zero is near."""
    zh, zl, zr = _plain_inverse(h, low, r)
    return normal(zh, zl, zr, -e)


@jit()
def plain(h: float, low: float, r: float, e: int) -> Triple:
    """Words without an exponent; what underflows is in the radius."""
    if e == 0:
        return h, low, r
    bounded = min(max(e, -FURTHEST), FURTHEST)
    third = bounded // 3
    one, two = _power(third), _power(bounded - 2 * third)
    ph, pl, pr = h * one * one * two, low * one * one * two, r * one * one * two
    # Each of nine products loses half of TINY at most, the earlier ones less.
    lost = 8 * TINY if (e < 0) & ((h != 0.0) | (r != 0.0)) else 0.0
    return ph, pl, pr + lost


@jit()
def exp(h: float, low: float, r: float, e: int) -> Wide:
    """exp(x), exactly zero for minus infinity: a gate that resets."""
    if (h == -math.inf) & (r == 0.0):
        return 0.0, 0.0, 0.0, 0
    xh, xl, xr = plain(h, low, r, e)
    if abs(xh) < PLAIN_ARGUMENT:
        zh, zl, zr = _plain_exp(xh, xl, xr)
        return normal(zh, zl, zr, 0)
    if xh <= -LARGEST_ARGUMENT:
        return (0.0, 0.0, 1.0, VANISHED) if xr < 1.0 else (0.0, 0.0, math.inf, 0)
    if not (xh < LARGEST_ARGUMENT):
        return 0.0, 0.0, math.inf, 0
    m = np.rint(xh * PER_PERIOD)
    rh, rl = double_word.two_sum(xh, -m * PERIOD_1)
    ph, pl, pr = _plain_multiply(-m, 0.0, 0.0, PERIOD_2, 0.0, 0.0)
    rh, rl, rr = _plain_add(rh, rl, xr, ph, pl, pr)
    ph, pl = double_word.two_sum(xl, -m * PERIOD_3)
    # m PERIOD_3, below 2**-63, is rounded; what three words leave is as small.
    rh, rl, rr = _plain_add(rh, rl, rr, ph, pl, 2.0**-114)
    zh, zl, zr = _plain_exp(rh, rl, rr)
    return normal(zh, zl, zr, int(m) * PERIOD)


@jit()
def log1p(h: float, low: float, r: float, e: int) -> Wide:
    """log(1 + t) for 0 <= t <= 1."""
    size = max(abs(h), r)
    if size == 0.0:
        return 0.0, 0.0, 0.0, 0
    if size < math.inf and math.frexp(size)[1] + e < LINEAR_BELOW:
        return h, low, r + (abs(h) + r) * LINEAR_ERROR, e
    th, tl, tr = plain(h, low, r, e)
    zh, zl, zr = plain_log1p(th, tl, tr)
    return normal(zh, zl, zr, 0)


@jit()
def softplus(h: float, low: float, r: float, e: int) -> Wide:
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))."""
    if h >= 0.0:
        th, tl, tr, te = exp(-h, -low, r, e)
        th, tl, tr, te = log1p(th, tl, tr, te)
        return add(h, low, r, e, th, tl, tr, te)
    th, tl, tr, te = exp(h, low, r, e)
    return log1p(th, tl, tr, te)


@jit()
def sigmoid(h: float, low: float, r: float, e: int) -> Wide:
    """1 / (1 + exp(-x)), as exp(x) / (1 + exp(x)) for negative x."""
    flipped = h >= 0.0
    sign = -1.0 if flipped else 1.0
    th, tl, tr, te = exp(sign * h, sign * low, r, e)
    ph, pl, pr = plain(th, tl, tr, te)
    ph, pl, pr = _plain_add(1.0, 0.0, 0.0, ph, pl, pr)
    ph, pl, pr = _plain_reciprocal(ph, pl, pr)
    if flipped:
        return ph, pl, pr, 0
    return multiply(th, tl, tr, te, ph, pl, pr, 0)


__all__ = [
    "Wide",
    "add",
    "exp",
    "log1p",
    "multiply",
    "normal",
    "plain",
    "reciprocal",
    "sigmoid",
    "softplus",
]
