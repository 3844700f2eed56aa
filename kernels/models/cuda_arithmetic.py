"""Operations of a CUDA device in fp32, for compiled loops on the CPU.

Sums, products and quotients of np.float32 are plain operators: each rounds to nearest
on both sides. Here is what needs an instruction of its own.
"""

import numpy as np
from numba import float32
from numpy.typing import NDArray

from scancheck.jit import fma_of
from scancheck.kernels.models.jit import jit

Float32Array = NDArray[np.float32]

_SMALLEST_NORMAL, _ZERO = np.float32(2.0**-126), np.float32(0.0)
_MANTISSA_BITS = np.int32(23)

inlined = jit(forceinline=True, _nrt=False)
"""Compiles a function of scalars into its callers."""

fma = fma_of(float32)


@inlined
def bits(x):
    """The bits of an np.float32 as np.int32."""
    return np.float32(x).view(np.int32)


@inlined
def from_bits(bits):
    """The np.float32 of some np.int32."""
    return np.int32(bits).view(np.float32)


@inlined
def max_or_nan(x, y):
    """The larger of x and a number y; NaN for NaN."""
    return y if x < y else x


@inlined
def min_or_nan(x, y):
    """The smaller of x and a number y; NaN for NaN."""
    return y if x > y else x


@inlined
def flushed(x, value):
    """`value` >= 0, or 0 where its exponent field is 0, or NaN where x is."""
    value = value if value >= _SMALLEST_NORMAL else _ZERO
    return value if x == x else x


@inlined
def scaled(value, shifted):
    """`value` with the integer in the last bits of `shifted` added to its exponent."""
    return from_bits(np.int32(bits(shifted) << _MANTISSA_BITS) + bits(value))
