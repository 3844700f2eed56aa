"""The formats: rounding, spacing and order, on whole formats and at random."""

import math
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scancheck.errors import CaseInvalid
from scancheck.formats import (
    BF16,
    FORMATS,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    FP64,
    TF32,
    FloatArray,
    Format,
    format_named,
    from_ordinal,
    ordinal,
    round_array,
    round_double_double,
    round_exact,
    ulp,
)

SMALL = [FP16, BF16, FP8_E4M3, FP8_E5M2]
ALL = [*SMALL, TF32, FP32, FP64]

every_format = pytest.mark.parametrize("fmt", ALL, ids=lambda fmt: fmt.name)
every_small_format = pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
every_half = pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda fmt: fmt.name)
every_eighth = pytest.mark.parametrize(
    "fmt", [FP8_E4M3, FP8_E5M2], ids=lambda fmt: fmt.name
)
finite_float = st.floats(allow_nan=False, allow_infinity=False)


def every_code(fmt: Format) -> FloatArray:
    """All 256 codes of an 8-bit format, as float64, decoded field by field.

    Sign, exponent, fraction; exponent 0 is subnormal. Of e5m2 the top exponent is
    infinity and NaN as in IEEE 754; of e4m3 only the code of all ones is NaN (OFP8,
    table 1).
    """
    codes = np.arange(256)
    fraction_bits = fmt.precision - 1
    exponent = (codes & 0x7F) >> fraction_bits
    fraction = (codes & (2**fraction_bits - 1)) / 2.0**fraction_bits
    normal = np.ldexp(1.0 + fraction, exponent + fmt.emin - 1)
    size = np.where(exponent == 0, np.ldexp(fraction, fmt.emin), normal)
    if fmt == FP8_E5M2:
        size = np.where(exponent == 31, np.where(fraction == 0, np.inf, np.nan), size)
    else:
        size = np.where(codes & 0x7F == 0x7F, np.nan, size)
    return np.where(codes < 128, size, -size)


def every_bit_pattern(fmt: Format) -> FloatArray:
    """All 65 536 bit patterns of a 16-bit format, as float64, decoded by NumPy."""
    patterns = np.arange(2**16, dtype=np.uint32)
    if fmt == FP16:
        return patterns.astype(np.uint16).view(np.float16).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return (patterns << 16).view(np.float32).astype(np.float64)


def every_finite_value(fmt: Format) -> FloatArray:
    """All finite values of a format in rising order, made from integer significands."""
    values = {0.0}
    for exponent in range(fmt.emin, fmt.emax + 1):
        quantum = exponent - fmt.precision + 1
        values |= {math.ldexp(m, quantum) for m in range(2**fmt.precision)}
    positive = np.array(sorted(v for v in values if 0.0 < v <= fmt.largest))
    return np.concatenate([-positive[::-1], [0.0], positive])


def near_midpoints(fmt: Format) -> FloatArray:
    """All midpoints of neighbours, overflow's too, and one fp64 step around each."""
    values = every_finite_value(fmt)
    beyond = fmt.largest + (values[-1] - values[-2])
    values = np.concatenate([[-beyond], values, [beyond]])
    middle = values[:-1] / 2 + values[1:] / 2
    below, above = np.nextafter(middle, -np.inf), np.nextafter(middle, np.inf)
    return np.concatenate([below, middle, above])


def assert_same(got: FloatArray, want: FloatArray, inputs: FloatArray) -> None:
    """Fail on the first place where values, NaN or signs of zero differ."""
    same = (got == want) & (np.signbit(got) == np.signbit(want))
    differing = np.flatnonzero(~(same | (np.isnan(got) & np.isnan(want))))
    first = [(inputs[i].hex(), got[i].hex(), want[i].hex()) for i in differing[:3]]
    assert not first, f"{differing.size} differ; first (input, got, want): {first}"


def exactly(
    fmt: Format, values: Iterable[Fraction | float], *, flush: bool = False
) -> FloatArray:
    """The scalar reference over a sequence of values."""
    return np.array([round_exact(fmt, value, flush=flush) for value in values])


@pytest.mark.parametrize(
    ("fmt", "largest", "smallest_subnormal", "bits", "torch_name"),
    [
        (FP16, 65504.0, 2.0**-24, 16, "float16"),
        (BF16, 3.3895313892515355e38, 2.0**-133, 16, "bfloat16"),
        (FP32, 3.4028234663852886e38, 2.0**-149, 32, "float32"),
        (FP64, 1.7976931348623157e308, 5e-324, 64, "float64"),
        (TF32, 3.4011621342146535e38, 2.0**-136, 19, "float32"),
        (FP8_E4M3, 448.0, 2.0**-9, 8, "float8_e4m3fn"),
        (FP8_E5M2, 57344.0, 2.0**-16, 8, "float8_e5m2"),
    ],
)
def test_derived_constants(
    fmt: Format, largest: float, smallest_subnormal: float, bits: int, torch_name: str
) -> None:
    """Each format has its published limits, width and torch dtype."""
    assert fmt.largest == largest
    assert fmt.smallest_subnormal == smallest_subnormal
    assert fmt.bits == bits
    assert fmt.torch_name == torch_name


@pytest.mark.parametrize(
    ("fmt", "numpy_type"), [(FP16, "half"), (FP32, "single"), (FP64, "double")]
)
def test_constants_agree_with_numpy(fmt: Format, numpy_type: str) -> None:
    """NumPy's finfo states the same limits for the formats that it knows."""
    info = np.finfo(numpy_type)
    assert fmt.largest == float(info.max)
    assert fmt.smallest_normal == float(info.smallest_normal)
    assert fmt.smallest_subnormal == float(info.smallest_subnormal)
    assert fmt.unit_roundoff == float(info.eps) / 2


@every_format
def test_eta_bounds_the_error_of_a_subnormal_rounding(fmt: Format) -> None:
    """Eta is half the smallest subnormal, or the least float64 above that half."""
    half = Fraction(fmt.smallest_subnormal) / 2
    assert fmt.eta == half or (fmt == FP64 and fmt.eta == math.ulp(0.0) > half)


def test_format_named() -> None:
    """A known name gives its format; an unknown one is refused with the known names."""
    assert [format_named(name) for name in FORMATS] == [
        FP8_E4M3,
        FP8_E5M2,
        FP16,
        BF16,
        FP32,
        FP64,
    ]
    with pytest.raises(CaseInvalid, match="bf16, fp32, fp64; got 'float32'"):
        format_named("float32")


@every_half
def test_every_bit_pattern_is_its_own_rounding(fmt: Format) -> None:
    """Rounding leaves every value of the format alone, NaN and sign of zero too."""
    values = every_bit_pattern(fmt)
    assert_same(round_array(fmt, values), values, values)
    assert_same(exactly(fmt, values), values, values)


@every_half
def test_ordinals_are_the_bit_patterns(fmt: Format) -> None:
    """The ordinal of a non-negative value is its bit pattern; a sign negates it."""
    values = every_bit_pattern(fmt)
    patterns = np.arange(2**16)
    want = np.where(patterns < 2**15, patterns, 2**15 - patterns)
    known = ~np.isnan(values)
    got = ordinal(fmt, values[known])
    assert np.array_equal(got, want[known])
    assert np.array_equal(from_ordinal(fmt, got), values[known])


@every_eighth
def test_every_code_is_its_own_rounding(fmt: Format) -> None:
    """The 256 codes are the format's values, and rounding leaves each alone."""
    values = every_code(fmt)
    finite = values[np.isfinite(values)]
    assert np.array_equal(np.unique(finite), every_finite_value(fmt))
    assert np.isinf(values).sum() == 2 * fmt.has_infinity
    assert_same(round_array(fmt, values), values, values)
    assert_same(exactly(fmt, values), values, values)


@every_eighth
def test_ordinals_are_the_codes(fmt: Format) -> None:
    """The ordinal of a non-negative value is its code; a sign negates it."""
    values, codes = every_code(fmt), np.arange(256)
    want = np.where(codes < 128, codes, 128 - codes)
    known = ~np.isnan(values)
    assert np.array_equal(ordinal(fmt, values[known]), want[known])
    assert np.array_equal(from_ordinal(fmt, want[known]), values[known])


@every_small_format
def test_ordinals_count_the_values(fmt: Format) -> None:
    """Over all finite values in order, the ordinals rise by exactly one each time."""
    values = every_finite_value(fmt)
    ordinals = ordinal(fmt, values)
    assert np.array_equal(ordinals, np.arange(values.size) - values.size // 2)
    assert_same(from_ordinal(fmt, ordinals), values, values)
    assert ordinal(fmt, np.array([np.inf]))[0] == ordinals[-1] + 1
    assert from_ordinal(fmt, np.array([-ordinals[-1] - 1]))[0] == -np.inf


@every_small_format
def test_ulp_is_the_gap_to_the_next_value(fmt: Format) -> None:
    """At every finite value, the ulp is the gap to the neighbour farther from zero."""
    values = every_finite_value(fmt)
    positive = values[values >= 0.0]
    gaps = np.diff(positive)
    assert np.array_equal(ulp(fmt, positive[:-1]), gaps)
    assert np.array_equal(ulp(fmt, -positive[:-1]), gaps)
    assert np.array_equal(ulp(fmt, positive[:-1] + gaps / 2), gaps)
    assert ulp(fmt, positive[-1]) == gaps[-1] == ulp(fmt, np.array(1e300))


@pytest.mark.parametrize("flush", [False, True], ids=["gradual", "flush"])
@every_small_format
def test_rounding_around_every_midpoint(fmt: Format, flush: bool) -> None:
    """At, just below and just above every midpoint, the array twin is the reference."""
    inputs = near_midpoints(fmt)
    want = exactly(fmt, inputs, flush=flush)
    assert_same(round_array(fmt, inputs, flush=flush), want, inputs)


@every_small_format
def test_reference_rounds_midpoints_to_the_even_neighbour(fmt: Format) -> None:
    """The scalar reference takes the even neighbour at, the nearer one off, a tie."""
    values = every_finite_value(fmt)
    positive = values[values >= 0.0]
    lower, upper = positive[:-1], positive[1:]
    middle = (lower + upper) / 2
    lower_is_even = np.arange(lower.size) % 2 == 0
    even = np.where(lower_is_even, lower, upper)
    assert_same(exactly(fmt, middle), even, middle)
    assert_same(exactly(fmt, np.nextafter(middle, 0)), lower, middle)
    assert_same(exactly(fmt, np.nextafter(middle, np.inf)), upper, middle)


def test_numpy_half_agrees_around_every_midpoint() -> None:
    """NumPy's own fp16 conversion, written by others, gives the same roundings."""
    inputs = near_midpoints(FP16)
    with np.errstate(over="ignore"):
        want = inputs.astype(np.float16).astype(np.float64)
    assert_same(round_array(FP16, inputs), want, inputs)


@pytest.mark.parametrize(
    ("fmt", "value", "want"),
    [
        (BF16, 1 + 2**-8 + 2**-40, 1.0078125),
        (FP16, 1 + 2**-11 + 2**-40, 1.0009765625),
        (FP8_E4M3, 1 + 2**-4 + 2**-40, 1.125),
    ],
)
def test_just_above_a_midpoint_is_rounded_once(
    fmt: Format, value: float, want: float
) -> None:
    """Values that library casts lose by going through float32 round up."""
    assert round_exact(fmt, value) == want
    assert round_array(fmt, np.array([value]))[0] == want


def test_exact_values_beyond_fp64_are_rounded_once() -> None:
    """An excess far below fp64's last bit decides the tie, subnormals included."""
    excess = Fraction(1, 2**200)
    assert round_exact(FP32, 1 + Fraction(1, 2**24) + excess) == 1 + 2**-23
    assert round_exact(FP32, 1 + Fraction(1, 2**24)) == 1.0
    assert round_exact(FP64, 1 + Fraction(1, 2**53) + excess) == 1 + 2**-52
    least = Fraction(5e-324)
    assert round_exact(FP64, Fraction(3, 2) * least - excess * least) == 5e-324
    assert round_exact(FP64, Fraction(3, 2) * least) == 1e-323
    assert round_exact(FP64, least / 2) == 0.0
    assert round_exact(FP64, least / 2 + excess * least) == 5e-324


@every_format
def test_overflow_begins_half_a_step_beyond_the_largest(fmt: Format) -> None:
    """A tie beyond the largest value goes to the even side; more overflows."""
    step = Fraction(2) ** (fmt.emax - fmt.precision + 1)
    tie = Fraction(fmt.largest) + step / 2
    infinite = math.inf if fmt.has_infinity else math.nan
    at_tie = infinite if fmt.top_significand % 2 else fmt.largest
    inputs = [tie - step / 2**60, tie, tie + step / 2**60, Fraction(2) ** 5000]
    inputs += [-value for value in inputs]
    want = [fmt.largest, at_tie, infinite, infinite]
    want += [-value for value in want]
    got = exactly(fmt, inputs)
    assert np.array_equal(got, np.array(want), equal_nan=True)


@every_format
def test_special_values(fmt: Format) -> None:
    """NaN, infinities and signed zeros pass, and tiny values keep their sign."""
    inputs = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, -5e-324])
    infinity = math.inf if fmt.has_infinity else math.nan
    tiny = 5e-324 if fmt == FP64 else 0.0
    want = np.array([np.nan, infinity, -infinity, 0.0, -0.0, tiny, -tiny])
    assert_same(round_array(fmt, inputs), want, inputs)
    assert_same(exactly(fmt, inputs), want, inputs)
    assert np.isnan(ulp(fmt, inputs[:1])).all()
    assert np.isinf(ulp(fmt, inputs[1:3])).all()


@every_format
def test_flush_keeps_the_smallest_normal_and_nothing_below(fmt: Format) -> None:
    """With flush, subnormal results become zeros of their sign, normals stay."""
    normal, tiny = fmt.smallest_normal, fmt.smallest_subnormal
    inputs = np.array([normal, normal - tiny, tiny, -tiny, -normal, -(normal - tiny)])
    want = np.array([normal, 0.0, 0.0, -0.0, -normal, -0.0])
    assert_same(round_array(fmt, inputs, flush=True), want, inputs)
    assert_same(exactly(fmt, inputs, flush=True), want, inputs)
    assert_same(round_array(fmt, inputs), inputs, inputs)


@every_format
def test_array_shapes_and_inputs_survive(fmt: Format) -> None:
    """Scalars, empty, strided and read-only arrays work; inputs are never written."""
    base = np.linspace(-3.0, 3.0, 24).reshape(4, 6)
    base.flags.writeable = False
    kept = base.copy()
    for x in (base, base[:, ::2].T, base[:0], base[1, 1]):
        rounded = round_array(fmt, x, flush=True)
        assert rounded.shape == np.shape(x)
        assert np.array_equal(rounded.ravel(), exactly(fmt, np.ravel(x)))
        assert ulp(fmt, x).shape == ordinal(fmt, rounded).shape == np.shape(x)
        assert not np.shares_memory(rounded, base)
    assert np.array_equal(base, kept)


@every_format
@given(value=st.floats(), flush=st.booleans())
def test_array_twin_is_the_reference(fmt: Format, value: float, flush: bool) -> None:
    """For any float64 and every format, array and scalar rounding agree."""
    inputs = np.array([value])
    want = exactly(fmt, inputs, flush=flush)
    assert_same(round_array(fmt, inputs, flush=flush), want, inputs)


def midpoints(fmt: Format) -> st.SearchStrategy[float]:
    """Midpoints of finite neighbours; for fp64 some are rounded to a neighbour."""
    last = int(ordinal(fmt, np.array([fmt.largest]))[0])
    neighbours = st.integers(-last, last - 1).map(lambda n: np.array([n, n + 1]))
    return neighbours.map(lambda pair: float((from_ordinal(fmt, pair) / 2).sum()))


@every_format
@given(data=st.data())
def test_array_twin_is_the_reference_in_range(fmt: Format, data: st.DataObject) -> None:
    """Within each format's range, near ties above all, both roundings agree."""
    middle = np.array([data.draw(midpoints(fmt))])
    inputs = from_ordinal(FP64, ordinal(FP64, middle) + data.draw(st.integers(-2, 2)))
    assert_same(round_array(fmt, inputs), exactly(fmt, inputs), inputs)


@given(value=finite_float)
def test_fp64_reference_is_python_division(value: float) -> None:
    """For fp64 the reference agrees with Python's correctly rounded true division."""
    third = Fraction(value) / 3
    assert round_exact(FP64, third) == third.numerator / third.denominator


@given(value=st.floats(-FP32.largest, FP32.largest, width=32))
def test_fp32_spacing_and_order_agree_with_numpy(value: float) -> None:
    """For fp32, ulp is NumPy's spacing and the next ordinal its next value."""
    x = np.array([value])
    if abs(value) < FP32.largest:
        assert ulp(FP32, x)[0] == abs(float(np.spacing(np.float32(value))))
    with np.errstate(over="ignore"):
        following = np.nextafter(np.float32(value), np.float32(np.inf))
    assert from_ordinal(FP32, ordinal(FP32, x) + 1)[0] == float(following)


@given(value=finite_float)
def test_fp64_spacing_and_order_agree_with_python(value: float) -> None:
    """For fp64, ulp is math.ulp and the next ordinal math.nextafter."""
    x, following = np.array([value]), math.nextafter(value, math.inf)
    assert ulp(FP64, x)[0] == math.ulp(value)
    assert from_ordinal(FP64, ordinal(FP64, x) + 1)[0] == following


@every_format
@given(data=st.data())
def test_double_double_is_rounded_once(fmt: Format, data: st.DataObject) -> None:
    """A normalised pair rounds as its exact sum does, at ties of the format too."""
    limit = FP64.largest
    hi = data.draw(finite_float | midpoints(fmt))
    hi = np.nextafter(hi, data.draw(st.sampled_from([-limit, hi, limit])))
    tail = data.draw(st.floats(-0.5, 0.5))
    lo = data.draw(st.sampled_from([0.5, -0.5, 0.25, 1e-30, -1e-30, tail]))
    lo *= math.ulp(hi)
    got = round_double_double(fmt, np.array([hi]), np.array([lo]))
    want = round_exact(fmt, Fraction(hi) + Fraction(lo))
    assert np.array_equal(got, np.array([want]), equal_nan=True)


@every_half
def test_double_double_at_every_midpoint(fmt: Format) -> None:
    """With hi on any tie the least lo decides the side; with hi beside it, hi does."""
    values = every_finite_value(fmt)
    lower, upper = values[:-1], values[1:]
    middle = (lower + upper) / 2
    least = np.full(middle.shape, 5e-324)
    zero = np.zeros(middle.shape)
    for lo, want in ((-least, lower), (least, upper)):
        assert np.array_equal(round_double_double(fmt, middle, lo), want)
    beside = np.nextafter(middle, -np.inf)
    assert np.array_equal(round_double_double(fmt, beside, least), lower)
    beside = np.nextafter(middle, np.inf)
    assert np.array_equal(round_double_double(fmt, beside, -least), upper)
    at_tie = round_double_double(fmt, middle, zero)
    assert_same(at_tie, round_array(fmt, middle), middle)


@every_format
def test_double_double_special_values(fmt: Format) -> None:
    """Infinities, NaN and signed zeros in hi come back as a plain rounding of hi."""
    hi = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])
    want = round_array(fmt, hi)
    assert_same(round_double_double(fmt, hi, np.zeros(5)), want, hi)
    assert_same(round_double_double(fmt, hi, np.array(0.0)), want, hi)


@every_format
def test_what_has_no_ordinal_is_refused(fmt: Format) -> None:
    """NaN has no ordinal, and no ordinal lies beyond infinity's on either side."""
    with pytest.raises(ValueError, match="without NaN"):
        ordinal(fmt, np.array([1.0, np.nan]))
    infinity = ordinal(fmt, np.array([np.inf]))
    for beyond in (infinity + 1, -infinity - 1, np.array([-(2**63)])):
        with pytest.raises(ValueError, match=f"<= {infinity[0]} for {fmt.name}"):
            from_ordinal(fmt, beyond)
