"""Operations of a CUDA device in fp32, for compiled loops on the CPU.

Sums, products and quotients of np.float32 are plain operators: each rounds to nearest
on both sides. Here is what needs an instruction of its own.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32
from numba.extending import intrinsic
from numpy.typing import NDArray

from scancheck.formats import Format
from scancheck.kernels.models.jit import jit

Float32Array = NDArray[np.float32]

_SMALLEST_NORMAL, _ZERO = np.float32(2.0**-126), np.float32(0.0)
_MANTISSA_BITS = np.int32(23)

inlined = jit(forceinline=True, _nrt=False)
"""Compiles a function of scalars into its callers."""


def _fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c in fp32, rounded once."""

    def lower(context: Any, builder: ir.IRBuilder, call: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return float32(float32, float32, float32), lower


_intrinsic: Any = intrinsic
fma: Callable[..., Any] = _intrinsic(_fma)


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


def numbers_of(fmt: Format) -> tuple[int, int, float]:
    """A format as `stored` takes it."""
    return fmt.precision, fmt.emin, fmt.largest


@jit()
def stored(x, fmt):
    """The np.float32 nearest to x that the format (precision, emin, largest) holds.

    Ties go to the even one, and what is too large to infinity.
    """
    if x == _ZERO or not np.isfinite(x):
        return x
    precision, emin, largest = fmt
    exact = np.float64(x)
    _, exponent = math.frexp(exact)
    spacing = math.ldexp(1.0, max(exponent - 1, emin) - precision + 1)
    nearest = np.rint(exact / spacing) * spacing
    return np.float32(nearest if abs(nearest) <= largest else exact * np.inf)
