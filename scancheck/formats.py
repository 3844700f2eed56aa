"""Number formats as data, and the verbs that round into them and measure in them.

Every conversion rounds once, to nearest with ties to even, from the exact value. Most
library casts from float64 to 16 bits go through float32 and round twice; only NumPy's,
which round once, are used here. Values of every format travel as float64, exactly.

fp8_e4m3 (torch's float8_e4m3fn) has no infinity: its overflow is NaN here. The OCP
specification allows that and saturation to the largest value; torch's own cast to it
saturates, that of an infinity included, and its cast to float8_e5m2 gives infinity.

Sources: IEEE 754-2019, sections 3.3 and 4.3; OCP 8-bit Floating Point Specification
(OFP8) 1.0 (2023), section 5; round to odd: Boldo and Melquiond,
"Emulation of FMA and correctly rounded sums", IEEE Trans. Computers 57 (2008).
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from scancheck.errors import CaseInvalid

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_FP64_PRECISION = 53
_FP64_EXPONENT_BIAS = 1023
_FP64_MAGNITUDE_BITS = np.int64(0x7FFF_FFFF_FFFF_FFFF)
_FP64_EXPONENT_BITS = np.int64(0x7FF0_0000_0000_0000)
_TORCH_FAMILIES = {"fp": "float", "bf": "bfloat", "tf": "float"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A binary floating-point format with subnormals, no wider than fp64."""

    name: str  # for example "fp16"; the digits name the storage width
    precision: int  # significand bits, the hidden one included
    emin: int  # the smallest normal value is 2**emin
    emax: int  # the largest finite value lies in [2**emax, 2**(emax + 1))
    has_infinity: bool = True  # without one, overflow gives NaN
    largest_significand: int | None = None  # of `largest`; None: all bits are ones

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of one rounding of a normal value."""
        return math.ldexp(1.0, -self.precision)

    @property
    def smallest_normal(self) -> float:
        """The least positive value that has the full precision."""
        return math.ldexp(1.0, self.emin)

    @property
    def smallest_subnormal(self) -> float:
        """The least positive value, which is also the spacing of the subnormals."""
        return math.ldexp(1.0, self.emin - self.precision + 1)

    @property
    def eta(self) -> float:
        """Half the smallest subnormal, the largest error of a subnormal rounding.

        For fp64 that is no float64: rounded up to 2**-1074, so that bounds stay bounds.
        """
        return max(self.smallest_subnormal / 2, math.ulp(0.0))

    @property
    def largest(self) -> float:
        """The largest finite value."""
        return math.ldexp(self.top_significand, self.emax - self.precision + 1)

    @property
    def top_significand(self) -> int:
        """The integer significand of the largest finite value."""
        return self.largest_significand or 2**self.precision - 1

    @property
    def bits(self) -> int:
        """Sign, exponent and fraction bits together (19 for tf32)."""
        return (1 - self.emin).bit_length() + 1 + self.precision

    @property
    def torch_name(self) -> str:
        """The attribute of `torch` whose dtype stores this format."""
        family = _TORCH_FAMILIES[self.name[:2]] + self.name[2:]
        # torch marks the format that spends its infinities on finite values by "fn".
        return family if self.has_infinity else family + "fn"


FP8_E4M3 = Format(
    name="fp8_e4m3",
    precision=4,
    emin=-6,
    emax=8,
    has_infinity=False,
    largest_significand=14,  # all ones is NaN
)
FP8_E5M2 = Format(name="fp8_e5m2", precision=3, emin=-14, emax=15)
FP16 = Format(name="fp16", precision=11, emin=-14, emax=15)
BF16 = Format(name="bf16", precision=8, emin=-126, emax=127)
FP32 = Format(name="fp32", precision=24, emin=-126, emax=127)
FP64 = Format(name="fp64", precision=53, emin=-1022, emax=1023)
TF32 = Format(name="tf32", precision=11, emin=-126, emax=127)
FORMATS: dict[str, Format] = {
    fmt.name: fmt for fmt in (FP8_E4M3, FP8_E5M2, FP16, BF16, FP32, FP64)
}

_NUMPY_TYPES: dict[Format, type[np.floating]] = {FP16: np.float16, FP32: np.float32}


def format_named(name: str) -> Format:
    """The format of this name; raises CaseInvalid with the known names otherwise."""
    if name not in FORMATS:
        msg = f"format: expected one of {', '.join(FORMATS)}; got {name!r}"
        raise CaseInvalid(msg)
    return FORMATS[name]


def round_exact(fmt: Format, value: Fraction | float, *, flush: bool = False) -> float:
    """The value of `fmt` nearest to the exact `value`, by integer arithmetic alone.

    With `flush`, results below the smallest normal become zero. Zeros keep the sign.
    """
    overflow = math.inf if fmt.has_infinity else math.nan
    if value == 0 or value != value:
        return float(value)
    sign = -1.0 if value < 0 else 1.0
    if abs(value) == math.inf:
        return sign * overflow
    exact = abs(Fraction(value))
    quantum = max(_binary_exponent(exact), fmt.emin) - fmt.precision + 1
    significand = round(exact / Fraction(2) ** quantum)
    top_quantum = fmt.emax - fmt.precision + 1
    if (quantum, significand) > (top_quantum, fmt.top_significand):
        return sign * overflow
    magnitude = math.ldexp(significand, quantum)
    if flush and magnitude < fmt.smallest_normal:
        magnitude = 0.0
    return sign * magnitude


def _binary_exponent(exact: Fraction) -> int:
    """The e with 2**e <= exact < 2**(e + 1), for a positive fraction."""
    estimate = exact.numerator.bit_length() - exact.denominator.bit_length()
    return estimate if exact >= Fraction(2) ** estimate else estimate - 1


def round_array(fmt: Format, x: FloatArray, *, flush: bool = False) -> FloatArray:
    """The values of `fmt` nearest to float64 values, each rounded once; a new array.

    NaN, infinities and signed zeros stay; `flush` as in `round_exact`.
    """
    x = np.asarray(x, dtype=np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if fmt == FP64:
            rounded = x.copy()
        elif fmt in _NUMPY_TYPES:
            rounded = x.astype(_NUMPY_TYPES[fmt]).astype(np.float64)
        else:
            rounded = _round_by_addition(fmt, x)
    if flush:
        below = np.abs(rounded) < fmt.smallest_normal
        np.multiply(rounded, 0.0, out=rounded, where=below)
    return rounded


def _round_by_addition(fmt: Format, x: FloatArray) -> FloatArray:
    """`round_array` for any precision up to 52, by one float64 addition.

    With c = 2**(exponent of x + 53 - precision), the last bit of |x| + c is the last
    that `fmt` keeps, and c is an even multiple of it, so the addition itself rounds
    as wanted; subtracting c is exact. A floor on c gives the subnormal grid.
    """
    shifter = _binade_start(fmt, x)
    shifter *= math.ldexp(1.0, _FP64_PRECISION - fmt.precision)
    rounded = np.abs(x, out=np.empty_like(x))
    rounded += shifter
    rounded -= shifter
    overflow = math.inf if fmt.has_infinity else math.nan
    np.putmask(rounded, rounded > fmt.largest, overflow)
    return np.copysign(rounded, x, out=rounded)


def _binade_start(fmt: Format, x: FloatArray) -> FloatArray:
    """2**floor(log2 |x|), the exponent held within emin..emax (zero, NaN, inf too)."""
    power = np.empty_like(x)
    np.bitwise_and(x.view(np.int64), _FP64_EXPONENT_BITS, out=power.view(np.int64))
    np.maximum(power, fmt.smallest_normal, out=power)
    return np.minimum(power, math.ldexp(1.0, fmt.emax), out=power)


def round_double_double(fmt: Format, hi: FloatArray, lo: FloatArray) -> FloatArray:
    """The values of `fmt` nearest to the exact sums hi + lo, each rounded once.

    `lo` is at most as large as `hi` (a normalised pair has |lo| <= ulp(hi) / 2). For a
    short format the sum is first rounded to odd in float64: that keeps on which side of
    every midpoint of `fmt` it lies, whenever precision + 2 <= 53 (Boldo and Melquiond).
    """
    hi, lo = np.broadcast_arrays(
        np.asarray(hi, dtype=np.float64), np.asarray(lo, dtype=np.float64)
    )
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = np.where(lo == 0.0, hi, hi + lo)
        rest = np.where(np.isfinite(nearest), lo - (nearest - hi), 0.0)
    if fmt == FP64:
        return nearest
    bits = nearest.view(np.int64)
    must_move = (rest != 0.0) & (bits & 1 == 0)
    step = np.where((rest > 0.0) == (nearest > 0.0), 1, -1)
    return round_array(fmt, (bits + step * must_move).view(np.float64))


def ulp(fmt: Format, x: FloatArray) -> FloatArray:
    """The spacing of `fmt` at |x|, at a power of two the one above it.

    Beyond the largest finite value that of the last binade; |x| for infinity and NaN.
    """
    x = np.asarray(x, dtype=np.float64)
    spacing = _binade_start(fmt, x)
    spacing *= math.ldexp(1.0, 1 - fmt.precision)
    return np.abs(x, out=spacing, where=~np.isfinite(x))


def ordinal(fmt: Format, x: FloatArray) -> IntArray:
    """Integers in the order of the values: neighbours in `fmt` differ by one.

    `x` holds values of `fmt`. Both zeros give 0, infinity follows the largest finite
    value. Raises ValueError for NaN.
    """
    x = np.asarray(x, dtype=np.float64)
    if np.isnan(x).any():
        raise ValueError("ordinal: expected values without NaN; mask them first")
    magnitude_bits = x.view(np.int64) & _FP64_MAGNITUDE_BITS
    count = (magnitude_bits >> (_FP64_PRECISION - fmt.precision)) - _ordinal_shift(fmt)
    if fmt != FP64:
        size = np.minimum(np.abs(x), fmt.smallest_normal)
        subnormal = (size / fmt.smallest_subnormal).astype(np.int64)
        count = np.where(size < fmt.smallest_normal, subnormal, count)
    count = np.minimum(count, _infinity_ordinal(fmt))
    return np.asarray(np.where(x < 0.0, -count, count))


def from_ordinal(fmt: Format, n: IntArray) -> FloatArray:
    """The values of `fmt` with these ordinals; raises ValueError beyond infinity's."""
    n = np.asarray(n, dtype=np.int64)
    count = np.abs(n)
    infinity = _infinity_ordinal(fmt)
    if ((n > infinity) | (n < -infinity)).any():
        raise ValueError(f"from_ordinal: expected |n| <= {infinity} for {fmt.name}")
    bits = (count + _ordinal_shift(fmt)) << (_FP64_PRECISION - fmt.precision)
    normal = np.asarray(bits).view(np.float64)
    subnormal = count * fmt.smallest_subnormal
    magnitude = np.where(count < 2 ** (fmt.precision - 1), subnormal, normal)
    magnitude = np.where(count == infinity, np.inf, magnitude)
    return np.asarray(np.where(n < 0, -magnitude, magnitude))


def _ordinal_shift(fmt: Format) -> int:
    """What the float64 bit pattern, cut to the precision, is ahead of the ordinal."""
    return (fmt.emin + _FP64_EXPONENT_BIAS - 1) << (fmt.precision - 1)


def _infinity_ordinal(fmt: Format) -> int:
    """One more than the ordinal of the largest finite value."""
    return ((fmt.emax - fmt.emin) << (fmt.precision - 1)) + fmt.top_significand + 1
