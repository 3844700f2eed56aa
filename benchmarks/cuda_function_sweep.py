"""The CPU's functions of cuda_functions over all 2^32 inputs: hashes and errors.

What kernels/cuda/sources/functions_check.cu does on a device, with the same layout: a
hash for each 2^22 inputs and the errors for each 2^23, which share sign and exponent.
The exact values come from fp64, here through the oracles' own functions, whose errors
of some 2^-50 do not show in units of 2^-24.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.kernels.models import cuda_ex2, cuda_functions
from scancheck.kernels.models.jit import jit
from scancheck.oracles.fma import fma
from scancheck.oracles.fp64_exp import exp as _exp
from scancheck.oracles.fp64_log1p import log1p as _log1p

SWEPT = ("exp2", "exp", "expm1", "log", "log1p", "softplus", "sigmoid", "silu")
TABULATED = ("exp2", "exp2_shifted", "exp", "softplus", "sigmoid", "silu")
INPUTS, HASH_BLOCK, ERROR_BLOCK = 1 << 32, 1 << 22, 1 << 23
_CHUNK = 1 << 13
SIGMOID_FLUSHED = -87.3  # below, silu has lost its other factor

_LN_2 = float(np.log(2.0))
_LOWEST_BITS = np.int64(np.float64(0.75).view(np.int64))
_EXPONENT_BITS = np.int64(-(1 << 52))
_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12 = (
    float(1.0 / np.prod(np.arange(2.0, k + 1.0))) for k in range(2, 13)
)

_inlined = jit(forceinline=True, cache=False, _nrt=False)


@_inlined
def _exp2_exact(x):
    return _exp(x * _LN_2)


@_inlined
def _expm1_exact(x):
    p = fma(x, _E12, _E11)
    p = fma(x, p, _E10)
    p = fma(x, p, _E9)
    p = fma(x, p, _E8)
    p = fma(x, p, _E7)
    p = fma(x, p, _E6)
    p = fma(x, p, _E5)
    p = fma(x, p, _E4)
    p = fma(x, p, _E3)
    p = fma(x, p, _E2)
    series = fma(x * x, p, x)
    return series if abs(x) < 0.25 else _exp(x) - 1.0


@_inlined
def _log_exact(x):
    bits = np.float64(x).view(np.int64)
    power = np.int64(bits - _LOWEST_BITS) & _EXPONENT_BITS
    f = np.int64(bits - power).view(np.float64) - 1.0
    k = np.float64(power >> 52)
    result = fma(k, _LN_2, _log1p(f))
    result = result if x < np.inf else x
    result = result if x > 0.0 else np.nan
    return -np.inf if x == 0.0 else result


@_inlined
def _log1p_exact(x):
    near = -0.25 < x < 0.5
    return _log1p(x if near else 0.0) if near else _log_exact(1.0 + x)


@_inlined
def _softplus_exact(x):
    return (0.0 if x < 0.0 else x) + _log1p(_exp(-abs(x)))


@_inlined
def _sigmoid_exact(x):
    e = _exp(-abs(x))
    return (e if x < 0.0 else 1.0) / (1.0 + e)


@_inlined
def _silu_exact(x):
    return (-1000.0 if x < -1000.0 else x) * _sigmoid_exact(x)


EXACT: dict[str, Any] = {
    "exp2": _exp2_exact,
    "exp2_shifted": _exp2_exact,
    "exp": _exp,
    "expm1": _expm1_exact,
    "log": _log_exact,
    "log1p": _log1p_exact,
    "softplus": _softplus_exact,
    "sigmoid": _sigmoid_exact,
    "silu": _silu_exact,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What a function does over all inputs, or over the first blocks of them."""

    sums: NDArray[np.uint64]  # [hash blocks]
    # [error blocks, relative (in 2^-24) | flushed (in 2^-126 max(1, |x|))]
    errors: NDArray[np.float32]
    inputs: NDArray[np.uint32]  # [error blocks, 2], where those errors are
    wrong_kinds: NDArray[np.int64]  # [error blocks]: NaN, infinite or finite wrongly
    descents: NDArray[np.int64]  # [error blocks]: inputs where the function falls


_NAN_BITS = np.uint32(0x7FC00000)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32 = (np.uint64(s) for s in (27, 30, 31, 32))


@_inlined
def _mixed(bits, i):
    z = (np.uint64(bits) << _S32) | np.uint64(i)
    z = (z ^ (z >> _S30)) * _M1
    z = (z ^ (z >> _S27)) * _M2
    return z ^ (z >> _S31)


_OVERFLOWS = float.fromhex("0x1.ffffffp+127")
_NORMAL, _TO_U, _TO_NORMAL = 2.0**-126, 2.0**24, 2.0**126


@_inlined
def _shifted(x, table):
    return cuda_ex2.exp2_product(x, np.float32(1.0), table)


def _reproducible(function: Any) -> Any:
    """The function with a table that it does not need."""

    @_inlined
    def call(x, table):
        return function(x)

    return call


def _block(function: Any, exact: Any, lowest: float) -> Callable[..., Any]:
    """A compiled sweep over one error block."""

    @jit(cache=False)
    def run(first, length, table, sums, errors, inputs):
        y = np.empty(_CHUNK, np.float32)
        judged = np.empty((2, _CHUNK), np.float64)
        wrong = np.empty(_CHUNK, np.int32)
        wrongs, descents = np.int64(0), np.int64(0)
        previous = function(np.uint32(max(first - 1, 0)).view(np.float32), table)
        for start in range(first, first + length, _CHUNK):
            for k in range(_CHUNK):
                x = np.uint32(start + k).view(np.float32)
                y[k] = function(x, table)
            total = np.uint64(0)
            for k in range(_CHUNK):
                bits = np.float32(y[k]).view(np.uint32)
                total += _mixed(_NAN_BITS if y[k] != y[k] else bits, start + k)
            sums[start // HASH_BLOCK] += total
            for k in range(_CHUNK):
                x = np.float64(np.uint32(start + k).view(np.float32))
                value, truth = np.float64(y[k]), exact(x)
                size = abs(truth)
                finite = abs(value) < np.inf
                fits = finite and size < _OVERFLOWS
                both = value == truth or (value != value and truth != truth)
                infinite = value == (np.inf if truth > 0.0 else -np.inf)
                overflows = size >= _OVERFLOWS and infinite
                wrong[k] = 0 if fits or both or overflows else 1
                error = abs(value - truth) if fits else 0.0
                normal = size >= _NORMAL and not x < lowest
                judged[0, k] = error / size * _TO_U if normal and fits else 0.0
                judged[1, k] = 0.0 if normal else error * _TO_NORMAL / max(1.0, abs(x))
            for k in range(_CHUNK):
                wrongs += wrong[k]
            for k in range(_CHUNK):
                before = y[k - 1] if k > 0 else previous
                # From 2**31 on, inputs are negative and go down; 2**31 is -0.
                falls = y[k] < before if start < 1 << 31 else y[k] > before
                descents += falls and start + k != 1 << 31
            previous = y[_CHUNK - 1]
            for kind in range(2):
                largest = np.int64(0)
                for k in range(_CHUNK):
                    largest = max(largest, np.float64(judged[kind, k]).view(np.int64))
                if np.int64(largest).view(np.float64) > errors[kind]:
                    errors[kind] = np.int64(largest).view(np.float64)
                    for k in range(_CHUNK):
                        if judged[kind, k] == errors[kind]:
                            inputs[kind] = start + k
                            break
        return wrongs, descents

    return run


def sweep(name: str, blocks: range | None = None, *, tabulated: bool = False) -> Sweep:
    """The function's sweep over all inputs, or over some error blocks.

    `tabulated`: the function of cuda_ex2 instead of that of cuda_functions.
    """
    count = INPUTS // ERROR_BLOCK
    table = cuda_ex2.table() if tabulated else np.empty(1, np.float32)
    function: Any = _reproducible(cuda_functions.FUNCTIONS.get(name))
    if tabulated:
        function = _shifted if name == "exp2_shifted" else getattr(cuda_ex2, name)
    lowest = SIGMOID_FLUSHED if name == "silu" else -np.inf
    run = _block(function, EXACT[name], lowest)
    result = Sweep(
        sums=np.zeros(INPUTS // HASH_BLOCK, np.uint64),
        errors=np.zeros((count, 2), np.float32),
        inputs=np.zeros((count, 2), np.uint32),
        wrong_kinds=np.zeros(count, np.int64),
        descents=np.zeros(count, np.int64),
    )
    for block in range(count) if blocks is None else blocks:
        errors = np.zeros(2)
        first, inputs = block * ERROR_BLOCK, result.inputs[block]
        found = run(first, ERROR_BLOCK, table, result.sums, errors, inputs)
        result.wrong_kinds[block], result.descents[block] = found
        result.errors[block] = errors
    return result
