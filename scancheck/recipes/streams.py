"""Reproducible draws: the same key gives the same bits on every machine.

Only the raw 64-bit words of PCG64 are used, whose stream NumPy keeps fixed (NEP 19);
what `numpy.random.Generator` makes of them may change between versions. Everything
after the words is IEEE addition, multiplication and scaling by powers of two, so no
mathematical library can change a last bit.
"""

import hashlib
import math

import numpy as np

from scancheck.formats import FloatArray, IntArray

Stream = np.random.PCG64
Shape = tuple[int, ...]


def stream(*key: object) -> Stream:
    """A stream of random words that depends on every part of the key."""
    digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
    return np.random.PCG64(int.from_bytes(digest, "big"))


def uniform(source: Stream, low: float, high: float, shape: Shape) -> FloatArray:
    """Uniform values in [low, high)."""
    words = np.asarray(source.random_raw(math.prod(shape)), dtype=np.uint64)
    fractions = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (low + (high - low) * fractions).reshape(shape)


def integers(source: Stream, low: int, high: int, shape: Shape) -> IntArray:
    """Uniform integers from low to high, both included."""
    return np.floor(uniform(source, low, high + 1, shape)).astype(np.int64)


def signs(source: Stream, shape: Shape) -> FloatArray:
    """-1 or 1."""
    sign = np.copysign(1.0, uniform(source, -1.0, 1.0, shape))
    return np.asarray(sign, dtype=np.float64)


def bell(source: Stream, shape: Shape) -> FloatArray:
    """Nearly normal values of mean 0 and variance 1: a sum of four uniform ones."""
    total = uniform(source, -0.5, 0.5, shape)
    for _ in range(3):
        total = total + uniform(source, -0.5, 0.5, shape)
    return math.sqrt(3.0) * total


def signed(source: Stream, low: float, high: float, shape: Shape) -> FloatArray:
    """Magnitudes uniform in [low, high) with random signs."""
    return uniform(source, low, high, shape) * signs(source, shape)


def power_of_two(exponent: FloatArray) -> FloatArray:
    """2**exponent, linear between integer exponents (at most 6.2 % above it)."""
    whole = np.floor(exponent)
    scaled = np.ldexp(1.0 + (exponent - whole), whole.astype(np.int64))
    return np.asarray(scaled, dtype=np.float64)


def halving(bits: FloatArray) -> FloatArray:
    """2**-bits, linear between integers: exactly 1 at 0, and 1 - 2**-k at 2**(1-k)."""
    return power_of_two(-bits)
