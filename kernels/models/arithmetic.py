"""Exactly rounded arithmetic in one format, one operation at a time, on whole arrays.

Values of fp32 and fp64 travel in NumPy's own type: IEEE 754 makes its +, - and x
correctly rounded. Values of fp16 and bf16 travel in float64, and each result is rounded
once more into the format. That second rounding is harmless for operands of the format:
a product of two p-bit values is exact in float64, and for a sum 53 >= 2 p + 2 suffices
(Figueroa, "When is double rounding innocuous?", SIGNUM Newsletter 30, 1995).

Operands in a wider format enter as they are. A product with one is still exact before
its one rounding (24 + 24 <= 53 bits); a sum with one needs `add_wider`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.formats import (
    FP32,
    FP64,
    Format,
    round_array,
    round_double_double,
)

Array = NDArray[Any]

HAS_EXTENDED_PRECISION = np.finfo(np.longdouble).nmant > 52
"""Whether functions can be evaluated beyond fp64 here, as fp64 models need."""

_VELTKAMP_SPLITTER = 2.0**27 + 1.0

# ln 2 in two words; the first has 21 bits, so that its product with an integer below
# 2**32 is exact in fp64 (Cody and Waite, "Software Manual for the Elementary
# Functions", 1980, chapter 6).
_LN2_HIGH = float.fromhex("0x1.62e42p-1")
_LN2_LOW = np.longdouble("4.749325039031672321214581765680755e-7")
_LARGEST_POWER = 2.0**30


class Arithmetic:
    """Operations that give the value of `format` nearest to the exact result.

    exp, log, softplus, sigmoid and silu are evaluated in fp64 (for fp64 in the
    machine's extended format), then rounded once: within `FUNCTION_ERROR` u.
    """

    FUNCTION_ERROR = 1.01
    """Unit roundoffs u a function value may be off: 1 for the rounding, and at most
    5 ulps of the evaluation, 10 * 2**-11 = 0.005 in the extended format and
    10 * 2**-29 in fp64 for the shorter formats."""

    def __init__(self, fmt: Format) -> None:
        self.format = fmt
        self.dtype: type[Any] = np.float32 if fmt == FP32 else np.float64
        self.native = fmt in (FP32, FP64)
        self._evaluation: type[Any] = np.longdouble if fmt == FP64 else np.float64

    def lift(self, x: Any) -> Array:
        """The same values in the type that values of this format travel in."""
        return np.asarray(x, dtype=self.dtype)

    def rounded(self, x: Array) -> Array:
        """Values computed more widely, rounded once into the format."""
        if self.native:
            return x.astype(self.dtype)
        return round_array(self.format, x)

    def add(self, x: Array, y: Array) -> Array:
        """x + y for operands of the format."""
        return np.add(x, y) if self.native else self.rounded(np.add(x, y))

    def sub(self, x: Array, y: Array) -> Array:
        """x - y for operands of the format."""
        return np.subtract(x, y) if self.native else self.rounded(np.subtract(x, y))

    def mul(self, x: Array, y: Array) -> Array:
        """x y for operands of the format or of a wider one up to fp32."""
        return np.multiply(x, y) if self.native else self.rounded(np.multiply(x, y))

    def div(self, x: Array, y: Array) -> Array:
        """x / y for operands of the format; 53 >= 2 p + 1 suffices as for a sum."""
        return np.divide(x, y) if self.native else self.rounded(np.divide(x, y))

    def add_wider(self, x: Array, y: Array) -> Array:
        """x + y for operands of the format or of a wider one up to fp32."""
        if self.native:
            return np.add(x, y)
        total, rest = _two_sum_fp64(x, y)
        return round_double_double(self.format, total, rest)

    def two_sum(self, x: Array, y: Array) -> tuple[Array, Array]:
        """fl(x + y) and its exact error, both in the format (Knuth's six additions).

        Valid in any precision with rounding to nearest; Knuth, "The Art of Computer
        Programming", volume 2, section 4.2.2, theorem B.
        """
        total = self.add(x, y)
        y_seen = self.sub(total, x)
        x_seen = self.sub(total, y_seen)
        return total, self.add(self.sub(x, x_seen), self.sub(y, y_seen))

    def two_prod(self, x: Array, y: Array) -> tuple[Array, Array]:
        """fl(x y) and its error, both in the format.

        Up to fp32 the float64 product is exact, so the error is one subtraction from
        it: exact unless it is subnormal in the format (or an operand is wider). In
        fp64 it is Dekker's product (Numerische Mathematik 18, 1971), whose splitting
        overflows for operands above 2**996; there the error counts as zero.
        """
        if self.format == FP64:
            return _two_prod_fp64(x, y)
        exact = np.multiply(x, y, dtype=np.float64)
        product = self.rounded(exact)
        return product, self.rounded(exact - product)

    def exp(self, x: Array) -> Array:
        """e**x."""
        return self.rounded(np.exp(self._widened(x)))

    def exp_pair(self, x: Array) -> tuple[Array, Array]:
        """e**x as an unevaluated sum of two values of the format."""
        exact = np.exp(self._widened(x))
        high = self.rounded(exact)
        rest = np.where(np.isfinite(high), exact - high, 0.0)
        return high, self.rounded(rest)

    def split_exp(self, x: Array) -> tuple[Array, Array]:
        """e**x as (f, n): f 2**n, with f in about [0.7, 1.5] and an integer n.

        n is x log2(e) rounded to an integer, and f = exp(x - n ln 2) is rounded once.
        Where x is not finite, or beyond 7e8, n has its limit and f is what is left.
        """
        wide = self._widened(x)
        n = np.rint(x.astype(np.float64) * np.log2(np.e))
        n = np.clip(np.where(np.isfinite(n), n, 0.0), -_LARGEST_POWER, _LARGEST_POWER)
        rest = (wide - n * _LN2_HIGH) - n * self._evaluation(_LN2_LOW)
        return self.rounded(np.exp(rest)), n.astype(np.int64)

    def scale(self, x: Array, power: Array) -> Array:
        """x 2**power, rounded only where that leaves the normal range."""
        limited = np.clip(power, -5000, 5000).astype(np.int32)
        return self.rounded(np.ldexp(x.astype(np.float64), limited))

    def log(self, x: Array) -> Array:
        """The natural logarithm of x >= 0; that of zero is -infinity."""
        return self.rounded(np.log(self._widened(x)))

    def log1p(self, x: Array) -> Array:
        """log(1 + x) for x >= -1."""
        return self.rounded(np.log1p(self._widened(x)))

    def softplus(self, x: Array) -> Array:
        """log(1 + e**x)."""
        x = self._widened(x)
        return self.rounded(np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))))

    def sigmoid(self, x: Array) -> Array:
        """1 / (1 + e**-x)."""
        return self.rounded(_sigmoid(self._widened(x)))

    def silu(self, x: Array) -> Array:
        """x / (1 + e**-x)."""
        x = self._widened(x)
        return self.rounded(x * _sigmoid(x))

    def silu_slope(self, x: Array) -> Array:
        """The derivative of silu, s (1 + x (1 - s)) with s = sigmoid(x).

        The sum cancels near x = -1.28: there the error of the evaluation is relative
        to s (1 + |x| (1 - s)), not to the result.
        """
        x = self._widened(x)
        return self.rounded(_sigmoid(x) * (1.0 + x * _sigmoid(-x)))

    def cast(self, fmt: Format, x: Array) -> Array:
        """The values rounded into another format, travelling as values of this one."""
        if fmt == self.format:
            return x
        return round_array(fmt, x.astype(np.float64)).astype(self.dtype)

    def _widened(self, x: Array) -> Array:
        return x.astype(self._evaluation)


def _sigmoid(x: Array) -> Array:
    """Without overflow: the exponent is never positive."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def _two_sum_fp64(x: Array, y: Array) -> tuple[Array, Array]:
    total = np.add(x, y)
    y_seen = total - x
    rest = (x - (total - y_seen)) + (y - y_seen)
    return total, np.where(np.isfinite(total), rest, 0.0)


def _two_prod_fp64(x: Array, y: Array) -> tuple[Array, Array]:
    product = np.multiply(x, y)
    x_high, x_low = _halves(x)
    y_high, y_low = _halves(y)
    rest = x_high * y_high - product
    rest = x_low * y_low + ((rest + x_high * y_low) + x_low * y_high)
    return product, np.where(np.isfinite(rest), rest, 0.0)


def _halves(x: Array) -> tuple[Array, Array]:
    """x as a sum of two values of at most 26 bits (Veltkamp's splitting)."""
    scaled = _VELTKAMP_SPLITTER * x
    high = scaled - (scaled - x)
    return high, x - high
