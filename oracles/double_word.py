"""Compiled building blocks of double-double arithmetic, each with its error bound.

A number is three float64: hi + lo with hi = RN(hi + lo), and a radius that is sure to
hold the exact number. Additions and products follow algorithms 6 and 12 of Joldes,
Muller and Popescu, "Tight and rigorous error bounds for basic building blocks of
double-word arithmetic", ACM TOMS 44 (2017). With u = 2**-53 their relative errors are
at most 3 u**2 + 13 u**3 (theorem 3.1) and 5 u**2 (theorem 5.3); Muller and Rideau,
"Formalization of double-word arithmetic", ACM TOMS 48 (2022), proved them formally. The
bounds used here are 4 u**2 and 8 u**2: the slack takes in that they are applied to |hi|
instead of the exact result.

Operations on single words (lo = 0) are exact and leave the radius as it is, so that
dyadic data keep a radius of exactly 0. Radii are sums of non-negative terms rounded to
nearest; `scancheck.oracles.double_double.certified_radius` makes good for that.
"""

import math

from scancheck.oracles.fma import fma
from scancheck.oracles.jit import jit

TINY = 2.0**-1074  # smallest subnormal
SUM_ERROR = 2.0**-104  # 4 u**2
PRODUCT_ERROR = 2.0**-103  # 8 u**2
# Below this a product's own rounding error may fall under TINY and be lost. A product
# then makes four roundings that each lose at most TINY / 2, and its radius three more.
SAFE_PRODUCT = 2.0**-960
FLOOR = 16 * TINY

Triple = tuple[float, float, float]


@jit(forceinline=True)
def two_sum(a: float, b: float) -> tuple[float, float]:
    """The rounded sum and its exact error (Knuth)."""
    total = a + b
    kept = total - a
    return total, (a - (total - kept)) + (b - kept)


@jit(forceinline=True)
def fast_two_sum(a: float, b: float) -> tuple[float, float]:
    """The rounded sum and its exact error for |a| >= |b| (Dekker)."""
    total = a + b
    return total, b - (total - a)


@jit(forceinline=True)
def add(xh: float, xl: float, xr: float, yh: float, yl: float, yr: float) -> Triple:
    """x + y; the bound holds under underflow too, where sums are exact."""
    sh, sl = two_sum(xh, yh)
    th, tl = two_sum(xl, yl)
    vh, vl = fast_two_sum(sh, sl + th)
    zh, zl = fast_two_sum(vh, tl + vl)
    own = SUM_ERROR * abs(zh) if (xl != 0.0) | (yl != 0.0) else 0.0
    return zh, zl, xr + yr + own


@jit(forceinline=True)
def multiply(
    xh: float, xl: float, xr: float, yh: float, yl: float, yr: float
) -> Triple:
    """x y; zero stays exactly zero."""
    ch = xh * yh
    low = fma(xl, yh, fma(xh, yl, xl * yl))
    zh, zl = fast_two_sum(ch, fma(xh, yh, -ch) + low)
    ax, ay = abs(xh), abs(yh)
    nonzero = (ax + xr != 0.0) & (ay + yr != 0.0)
    inexact = (abs(xl) + abs(yl) + xr + yr != 0.0) | (abs(ch) < SAFE_PRODUCT)
    own = PRODUCT_ERROR * abs(zh) + FLOOR if nonzero & inexact else 0.0
    return zh, zl, ax * yr + xr * (ay + yr) + own


@jit(forceinline=True)
def reciprocal(xh: float, xl: float, xr: float) -> Triple:
    """1 / x for 1 <= x <= 2: the rounded inverse y, and y (e + e**2) for e = 1 - x y.

    |e| <= 2 u + u**2 < 2**-51: what e**2 drops by rounding, and the terms left out, are
    together below 2**-149 of the result.
    """
    y = 1.0 / xh
    ph, pl, pr = multiply(xh, xl, 0.0, y, 0.0, 0.0)
    eh, el, er = add(1.0, 0.0, 0.0, -ph, -pl, pr)
    eh, el, er = add(eh, el, er, eh * eh, 0.0, 2.0**-149)
    ch, cl, cr = multiply(eh, el, er, y, 0.0, 0.0)
    zh, zl, zr = add(y, 0.0, 0.0, ch, cl, cr)
    # |1/x - 1/x'| <= xr / (x (x - xr)), and x >= 1.
    spread = xr / (1.0 - xr) if xr < 0.5 else float("inf")
    return zh, zl, zr + spread


@jit()
def inverse(xh: float, xl: float, xr: float) -> Triple:
    """1 / x over the whole range; a radius of |x| / 2 or more leaves it no end.

    x is moved to 1 <= |x| < 2 by a power of two, and the result by the same one.
    """
    if not ((abs(xh) > 2.0 * xr) & (abs(xh) < math.inf)):  # zero and NaN included
        return 0.0, 0.0, math.inf
    shift = 1 - math.frexp(xh)[1]
    lost = 4 * TINY if shift < 0 else 0.0
    sh, sl = math.ldexp(xh, shift), math.ldexp(xl, shift)
    sr = math.ldexp(xr, shift) + lost
    zh, zl, zr = reciprocal(sh, sl, 0.0)
    # |1/x - 1/x'| <= r / (|x| (|x| - r)), and |x| is |hi| less an ulp at least.
    zr += sr / (abs(sh) * (abs(sh) - sr)) * (1.0 + 2.0**-50)
    zh, zl = fast_two_sum(math.ldexp(zh, shift), math.ldexp(zl, shift))
    if not (abs(zh) < math.inf):
        return 0.0, 0.0, math.inf
    return zh, zl, math.ldexp(zr, shift) + lost


__all__ = [
    "add",
    "fast_two_sum",
    "fma",
    "inverse",
    "multiply",
    "reciprocal",
    "two_sum",
]
