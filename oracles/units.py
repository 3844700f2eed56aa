"""Constants of fp64 that are compiled into jit functions.

They stand in a file of their own so that changing one changes the cache key of
everything compiled (scancheck.oracles.jit).
"""

U64 = 2.0**-53  # unit roundoff of fp64
TINY = 2.0**-1074  # smallest subnormal: a rounding in its range loses half of it
# What a value and the terms of its radius may lose to underflow in one operation: no
# operation here makes more than seven roundings.
FLOOR = 4 * TINY
# NumPy's exp, log1p and expm1 claim less than one ulp (2 u) on every platform; 4 u
# leaves room for the vector libraries it may be built with.
FUNCTION_ERROR = 4 * U64
