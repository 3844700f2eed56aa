"""The functions of kernels/cuda/sources/functions.cuh on the CPU, bit for bit.

Each has the operations of the CUDA policy `Reproducible`, in the same order, and is a
compiled function of one np.float32, to be called from compiled loops; NaN may have
another payload. `FUNCTIONS` has them by name and `on_array` applies one to an array.
What they compute, where they flush and how they reduce is told in the CUDA source; the
coefficients come from benchmarks/cuda_function_coefficients.py.
"""

from collections.abc import Callable, Mapping

import numpy as np

from scancheck.kernels.models.cuda_arithmetic import (
    Float32Array,
    bits,
    flushed,
    fma,
    from_bits,
    inlined,
    max_or_nan,
    min_or_nan,
    scaled,
)
from scancheck.kernels.models.jit import jit

Function = Callable[[np.float32], np.float32]


def _coefficients(*values: str) -> tuple[float, ...]:
    """Hexadecimal fp32 numbers, lowest degree first."""
    return tuple(float.fromhex(value) for value in values)


EXP2 = _coefficients(
    "0x1.62e430p-1",
    "0x1.ebfbdap-3",
    "0x1.c6af78p-5",
    "0x1.3b2f46p-7",
    "0x1.5f0a6ap-10",
    "0x1.408038p-13",
)
EXPM1 = _coefficients(
    "0x1.000000p-1",
    "0x1.555554p-3",
    "0x1.5554f2p-5",
    "0x1.111312p-7",
    "0x1.6d411ap-10",
    "0x1.9e099ep-13",
)
LOG1P = _coefficients(
    "-0x1.ffffd2p-2",
    "0x1.554dd0p-2",
    "-0x1.ff23e8p-3",
    "0x1.934b8ap-3",
    "-0x1.3a44eep-3",
    "0x1.b4b80ep-4",
    "-0x1.d6d044p-5",
    "0x1.49489ap-6",
    "-0x1.afbe7cp-9",
)
LOG = _coefficients(
    "-0x1.000000p-1",
    "0x1.5555a2p-2",
    "-0x1.00003ap-2",
    "0x1.9969e2p-3",
    "-0x1.54f316p-3",
    "0x1.288a36p-3",
    "-0x1.0d69b0p-3",
    "0x1.ab9e14p-4",
    "-0x1.6f8e0cp-5",
)
RECIPROCAL = _coefficients("0x1.fad40ap-1", "-0x1.9dbcbep-1", "0x1.4afd58p-2")

# Constants as in the CUDA source; np.float32 keeps compiled expressions in fp32.
_f = np.float32
_SHIFT = _f(1.5 * 2.0**23)
LOG2_E, _LOG2_E_REST = (
    _f(float.fromhex("0x1.715476p+0")),
    _f(float.fromhex("0x1.4ae0cp-26")),
)
_LN_2 = _f(float.fromhex("0x1.62e430p-1"))
_LN_2_SHORT = _f(float.fromhex("0x1.62e4p-1"))
_LN_2_REST = _f(float.fromhex("0x1.7f7d1cp-20"))
_EXP2_LOWEST, _EXP2_HIGHEST = _f(-126.25), _f(128.0)
_EXP2_REST_LOWEST = _f(-0.75)
_SHIFTED_LOWEST, _SHIFTED_HIGHEST = _SHIFT - _f(126.0), _SHIFT + _f(128.0)
_EXP_LOWEST, _EXP_HIGHEST = _f(-87.5), _f(float.fromhex("0x1.62e42ep+6"))
_EXPM1_LOWEST, _EXPM1_HALVED = _f(-25.0), _f(88.0)
SILU_LOWEST = _f(-128.0)
_SMALLEST_NORMAL = _f(2.0**-126)
_LOG1P_AS_LOG = _f(2.0**30)
_UP_23, _DOWN_23, _MINUS_23 = _f(2.0**23), _f(2.0**-23), _f(-23.0)
_ZERO, _HALF, _ONE, _TWO = _f(0.0), _f(0.5), _f(1.0), _f(2.0)
_INFINITY, _NAN = _f(np.inf), _f(np.nan)
_ONE_BITS = np.int32(0x3F800000)
_LOG_LOWEST_BITS = np.int32(_f(0.75).view(np.int32))
_EXPONENT_BITS = np.int32(-0x00800000)
_23 = np.int32(23)

_EXP2, _EXPM1, _LOG1P, _LOG, _RECIPROCAL = (
    tuple(map(_f, c)) for c in (EXP2, EXPM1, LOG1P, LOG, RECIPROCAL)
)


@inlined
def _polynomial(x, coefficients):
    p = coefficients[-1]
    for i in range(len(coefficients) - 2, -1, -1):
        p = fma(x, p, coefficients[i])
    return p


@inlined
def _exp2_fraction(f):
    return fma(f, _polynomial(f, _EXP2), _ONE)


@inlined
def exp2_in_range(x):
    """2**x for -126 <= x < 128, not checked."""
    shifted = x + _SHIFT
    f = x - (shifted - _SHIFT)
    return scaled(_exp2_fraction(f), shifted)


@inlined
def exp2(x):
    """2**x."""
    y = min_or_nan(max_or_nan(x, _EXP2_LOWEST), _EXP2_HIGHEST)
    return flushed(y, exp2_in_range(y))


@inlined
def exp2_product(x, y):
    """2**(x y), the product not rounded."""
    shifted = max_or_nan(fma(x, y, _SHIFT), _SHIFTED_LOWEST)
    shifted = min_or_nan(shifted, _SHIFTED_HIGHEST)
    f = max_or_nan(fma(x, y, -(shifted - _SHIFT)), _EXP2_REST_LOWEST)
    value = flushed(f, scaled(_exp2_fraction(f), shifted))
    overflows = shifted == _SHIFTED_HIGHEST and f >= _ZERO
    return _INFINITY if overflows else value


@inlined
def _exp_below(x):
    y = max_or_nan(x, _EXP_LOWEST)
    shifted = fma(y, LOG2_E, _SHIFT)
    n = shifted - _SHIFT
    f = fma(y, LOG2_E, -n)
    f = fma(y, _LOG2_E_REST, f)
    return flushed(y, scaled(_exp2_fraction(f), shifted))


@inlined
def exp(x):
    """e**x."""
    value = _exp_below(min_or_nan(x, _EXP_HIGHEST))
    return _INFINITY if x > _EXP_HIGHEST else value


@inlined
def expm1(x):
    """e**x - 1."""
    y = min_or_nan(max_or_nan(x, _EXPM1_LOWEST), _EXP_HIGHEST)
    shifted = fma(y, LOG2_E, _SHIFT)
    n = shifted - _SHIFT
    r = fma(-n, _LN_2_SHORT, y)
    r = fma(-n, _LN_2_REST, r)
    q = fma(r * r, _polynomial(r, _EXPM1), r)
    unit = _HALF if y > _EXPM1_HALVED else _ONE
    power = scaled(unit, shifted)
    value = fma(power, q, power - unit)
    value = value * _TWO if y > _EXPM1_HALVED else value
    return _INFINITY if x > _EXP_HIGHEST else value


@inlined
def log1p_unit(x):
    """log(1 + x) for 0 <= x <= 1."""
    return fma(x * x, _polynomial(x, _LOG1P), x)


@inlined
def _log_power(x):
    return np.int32(bits(x) - _LOG_LOWEST_BITS) & _EXPONENT_BITS


@inlined
def _log_reduced(f):
    return fma(f * f, _polynomial(f, _LOG), f)


@inlined
def log(x):
    """The natural logarithm; that of 0 is -inf, of a negative number NaN."""
    subnormal = x < _SMALLEST_NORMAL
    y = x * _UP_23 if subnormal else x
    power = _log_power(y)
    f = from_bits(bits(y) - power) - _ONE
    k = fma(np.float32(power), _DOWN_23, _MINUS_23 if subnormal else _ZERO)
    result = fma(k, _LN_2, _log_reduced(f))
    result = result if x < _INFINITY else x
    result = _NAN if x < _ZERO else result
    return -_INFINITY if x == _ZERO else result


@inlined
def log1p(x):
    """log(1 + x); that of -1 is -inf, below it NaN."""
    power = _log_power(_ONE + x)
    scale = from_bits(_ONE_BITS - power)
    f = fma(scale, x, scale - _ONE)
    k = np.float32(power) * _DOWN_23
    result = fma(k, _LN_2, _log_reduced(f))
    result = result if x < _LOG1P_AS_LOG else log(x)
    result = _NAN if x < -_ONE else result
    return -_INFINITY if x == -_ONE else result


@inlined
def softplus(x):
    """log(1 + e**x)."""
    e = _exp_below(-abs(x))
    return max_or_nan(x, _ZERO) + log1p_unit(e)


@inlined
def sigmoid_of(x, e):
    """1 / (1 + e**-x) from e = exp(-abs(x))."""
    r = _polynomial(e, _RECIPROCAL)
    r = fma(r, fma(-r, e, _ONE - r), r)
    r = fma(r, fma(-r, e, _ONE - r), r)
    return e * r if x < _ZERO else r


@inlined
def sigmoid(x):
    """1 / (1 + e**-x)."""
    return sigmoid_of(x, _exp_below(-abs(x)))


@inlined
def silu(x):
    """x / (1 + e**-x)."""
    return max_or_nan(x, SILU_LOWEST) * sigmoid(x)


def _over_array(function: Function) -> Callable[[Float32Array, Float32Array], None]:
    """A compiled loop that writes the function of each entry."""

    @jit(cache=False, _nrt=False)
    def loop(x: Float32Array, result: Float32Array) -> None:
        for i in range(x.size):
            result[i] = function(x[i])

    return loop


FUNCTIONS: Mapping[str, Function] = {
    "exp2": exp2,
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "log1p_unit": log1p_unit,
    "softplus": softplus,
    "sigmoid": sigmoid,
    "silu": silu,
}
_LOOPS: dict[str, Callable[[Float32Array, Float32Array], None]] = {}


def on_array(name: str, x: Float32Array) -> Float32Array:
    """FUNCTIONS[name] of every entry of a contiguous fp32 array, in its shape."""
    if name not in _LOOPS:
        _LOOPS[name] = _over_array(FUNCTIONS[name])
    result = np.empty_like(x)
    _LOOPS[name](x.reshape(-1), result.reshape(-1))
    return result


__all__ = [
    "EXP2",
    "EXPM1",
    "FUNCTIONS",
    "LOG",
    "LOG1P",
    "LOG2_E",
    "RECIPROCAL",
    "SILU_LOWEST",
    "Float32Array",
    "exp",
    "exp2",
    "exp2_in_range",
    "exp2_product",
    "expm1",
    "fma",
    "log",
    "log1p",
    "log1p_unit",
    "on_array",
    "sigmoid",
    "sigmoid_of",
    "silu",
    "softplus",
]
