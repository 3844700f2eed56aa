"""Constants of fp64 that are compiled into jit functions.

They stand in a file of their own so that changing one changes the cache key of
everything compiled (scancheck.oracles.jit).
"""

U64 = 2.0**-53  # unit roundoff of fp64
TINY = 2.0**-1074  # smallest subnormal: covers a rounding in the subnormal range
