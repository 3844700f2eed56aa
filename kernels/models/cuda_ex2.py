"""The hardware's ex2.approx.ftz.f32 on the CPU, by a table, and what is built on it.

On all 2**32 inputs an H200 (sm_90) gives the value of a table of 2**23 numbers, those
of its own ex2 at i 2**-23 for i = 0 .. 2**23 - 1: the argument's size is cut to a
multiple of 2**-23; the fraction f of a negative argument becomes 1 - f - 2**-23, one
power below, unless it is 0; the integer part goes into the exponent, and results below
2**-126 are 0 (`ex2_compare` in kernels/cuda/sources/functions_check.cu).

The functions are those of the CUDA policy `Tabulated`, bit for bit. Each takes the
table as its last argument; what that policy shares with Reproducible is in
cuda_functions.
"""

import hashlib
import zlib
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scancheck.errors import RecordUnreadable
from scancheck.kernels.models.cuda_arithmetic import (
    Float32Array,
    bits,
    flushed,
    fma,
    from_bits,
    inlined,
    max_or_nan,
    min_or_nan,
)
from scancheck.kernels.models.cuda_functions import (
    LOG2_E,
    SILU_LOWEST,
    log1p_unit,
    on_array,
    sigmoid_of,
)

SIZE = 1 << 23
SHA256 = {"sm_90": "b2a42c4a626469c986e33e43f16f41bde9d84de94347cd9ceaa1bd68d36bcdf0"}
"""Of the table's bytes, little-endian, by architecture."""

_LOWEST, _HIGHEST = np.float32(-127.0), np.float32(128.0)
_ZERO = np.float32(0.0)
_TO_FIXED = np.float32(2.0**23)
_FRACTION = np.int32(SIZE - 1)
_MANTISSA_BITS, _NO, _YES = np.int32(23), np.int32(0), np.int32(1)
_EX2_SHIFT = np.float32(float.fromhex("0x1.5p-27"))


@cache
def table(architecture: str = "sm_90") -> Float32Array:
    """The values of ex2.approx.ftz at i 2**-23, unpacked and verified.

    The file has their differences from the own exp2 in units of the last place.
    Raises RecordUnreadable where it is damaged.
    """
    path = Path(__file__).parent / f"ex2_{architecture}.zlib"
    try:
        differences = np.frombuffer(zlib.decompress(path.read_bytes()), np.int8)
        found = _unpacked(differences)
    except (OSError, ValueError, zlib.error) as error:
        raise RecordUnreadable(
            f"{path.name}: expected a packed table: {error}"
        ) from None
    digest = hashlib.sha256(found.astype("<f4").tobytes()).hexdigest()
    if digest != SHA256[architecture]:
        raise RecordUnreadable(
            f"{path.name}: expected a table with SHA-256 {SHA256[architecture]}; "
            f"got {digest}"
        )
    found.flags.writeable = False
    return found


def packed(values: Float32Array) -> bytes:
    """The table as its file has it."""
    differences = values.view(np.int32) - _own().view(np.int32)
    return zlib.compress(differences.astype(np.int8).tobytes(), 9)


def _unpacked(differences: NDArray[np.int8]) -> Float32Array:
    found: Float32Array = (_own().view(np.int32) + differences).view(np.float32)
    return found


def _own() -> Float32Array:
    return on_array("exp2", (np.arange(SIZE) * 2.0**-23).astype(np.float32))


@inlined
def exp2(x, table):
    """ex2.approx.ftz(x)."""
    y = min_or_nan(max_or_nan(x, _LOWEST), _HIGHEST)
    number = y if y == y else _ZERO
    fixed = np.int32(abs(number) * _TO_FIXED)
    fraction, whole = fixed & _FRACTION, fixed >> _MANTISSA_BITS
    complement = _YES if (number < _ZERO and fraction != _NO) else _NO
    index = _FRACTION - fraction if complement == _YES else fraction
    power = -whole - complement if number < _ZERO else whole
    value = from_bits(np.int32(power << _MANTISSA_BITS) + bits(table[index]))
    return flushed(y, value)


@inlined
def exp2_product(x, y, table):
    """2**(x y), the argument a little larger against the bias of cutting it."""
    return exp2(fma(x, y, _EX2_SHIFT), table)


@inlined
def exp(x, table):
    """e**x."""
    return exp2(x * LOG2_E, table)


@inlined
def softplus(x, table):
    """log(1 + e**x)."""
    return max_or_nan(x, _ZERO) + log1p_unit(exp(-abs(x), table))


@inlined
def sigmoid(x, table):
    """1 / (1 + e**-x)."""
    return sigmoid_of(x, exp(-abs(x), table))


@inlined
def silu(x, table):
    """x / (1 + e**-x)."""
    return max_or_nan(x, SILU_LOWEST) * sigmoid(x, table)
