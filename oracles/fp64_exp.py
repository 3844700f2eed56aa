"""exp for compiled loops that must not wait for the interpreter, with its error bound.

x = n ln 2 + r with |r| <= 0.347, n ln 2 in two words (Cody and Waite, "Software Manual
for the Elementary Functions", 1980, chapter 6), exp(r) by 13 terms of its series, which
leave out less than 2**-57. The roundings that count are those of r (u/2 at most, as r
is below 1/2), of the two last sums (u each, the result being above 0.7) and of what
they add, which is below 0.42: together below 3 u. FUNCTION_ERROR is 4 u.
"""

import math

import numpy as np

from scancheck.oracles.fma import fma
from scancheck.oracles.jit import NO_ALLOCATION, jit
from scancheck.oracles.units import FLOOR, FUNCTION_ERROR, TINY

LOG2_E = 1.4426950408889634
# ln 2 as a number of 33 bits, of which n times is exact, and what it leaves.
LN_2 = float.fromhex("0x1.62e42fee00000p-1")
LN_2_REST = float.fromhex("0x1.a39ef35793c76p-33")
# Added and taken away it rounds to an integer, which it leaves in the last bits.
SHIFT = 1.5 * 2.0**52
SHIFT_BITS = int(np.float64(SHIFT).view(np.int64))
SERIES = tuple(1.0 / math.factorial(k) for k in range(2, 14))
C2, C3, C4, C5, C6, C7, C8, C9, C10, C11, C12, C13 = SERIES
# exp is 0 below and infinite above.
LOWEST, HIGHEST = -746.0, 710.0


@jit(forceinline=True, **NO_ALLOCATION)
def exp(x):
    """exp(x) within FUNCTION_ERROR; within 2 TINY where it is subnormal."""
    # NaN passes both.
    y = LOWEST if x < LOWEST else x
    y = HIGHEST if y > HIGHEST else y
    shifted = fma(y, LOG2_E, SHIFT)
    n = shifted - SHIFT
    r = fma(-n, LN_2_REST, fma(-n, LN_2, y))
    p = fma(r, C13, C12)
    p = fma(r, p, C11)
    p = fma(r, p, C10)
    p = fma(r, p, C9)
    p = fma(r, p, C8)
    p = fma(r, p, C7)
    p = fma(r, p, C6)
    p = fma(r, p, C5)
    p = fma(r, p, C4)
    p = fma(r, p, C3)
    p = fma(r, p, C2)
    p = 1.0 + fma(r * r, p, r)
    # 2**n in two factors, of which none is out of range.
    exponent = np.float64(shifted).view(np.int64) - SHIFT_BITS
    half = exponent >> 1
    return p * _power(half) * _power(exponent - half)


@jit(forceinline=True, **NO_ALLOCATION)
def _power(n):
    """2**n from its bits."""
    return np.int64((n + 1023) << 52).view(np.float64)


@jit(forceinline=True, **NO_ALLOCATION)
def exp_with_radius(x, r):
    """exp of a ball; of a ball of radius 1 and more only where all of it is below 0.

    r + r**2 is above expm1(r) up to r = 1.79. TINY stands for what exp has lost.
    """
    value = exp(x)
    above = fma(fma(r, r, r), 1.0 + 4 * FUNCTION_ERROR, FUNCTION_ERROR)
    radius = above * (value + TINY) + FLOOR
    radius = radius if r < 1.0 else np.inf
    return value, FLOOR if x + r < LOWEST else radius
