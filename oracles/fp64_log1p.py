"""log(1 + x) on [0, 1] for compiled loops, with its error bound.

log(1 + x) = 2 artanh(s) with s = x / (2 + x), which is 1/3 at most (Abramowitz and
Stegun, "Handbook of Mathematical Functions", 1964, 4.1.27). 18 terms of the series in
s**2 leave out less than 2**-57. With u for a rounding, s has 2 u of which artanh makes
1.09 times as much for s up to 1/3; the terms beyond the first, below 0.05 of the whole,
add 0.2 u and the last sum u: together 3.4 u. FUNCTION_ERROR is 4 u.
"""

from scancheck.oracles.fma import fma
from scancheck.oracles.jit import NO_ALLOCATION, jit

SERIES = tuple(2.0 / (2 * k + 1) for k in range(1, 18))
C1, C2, C3, C4, C5, C6, C7, C8, C9, C10, C11, C12, C13, C14, C15, C16, C17 = SERIES


@jit(forceinline=True, **NO_ALLOCATION)
def log1p(x):
    """log(1 + x) within FUNCTION_ERROR for x in [0, 1]; within TINY where subnormal."""
    s = x / (2.0 + x)
    t = s * s
    p = fma(t, C17, C16)
    p = fma(t, p, C15)
    p = fma(t, p, C14)
    p = fma(t, p, C13)
    p = fma(t, p, C12)
    p = fma(t, p, C11)
    p = fma(t, p, C10)
    p = fma(t, p, C9)
    p = fma(t, p, C8)
    p = fma(t, p, C7)
    p = fma(t, p, C6)
    p = fma(t, p, C5)
    p = fma(t, p, C4)
    p = fma(t, p, C3)
    p = fma(t, p, C2)
    p = fma(t, p, C1)
    # Not fused: an operand that is subnormal makes a fused operation slow.
    return s * (t * p) + 2.0 * s
