"""The fused multiply-add in fp64 for compiled loops."""

from numba import float64

from scancheck.jit import fma_of

fma = fma_of(float64)
