"""The CPU's twins of the CUDA functions: error, special values, and the CUDA source."""

import re
import shutil
import subprocess
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scancheck.formats import BF16, FP16, Format, from_ordinal
from scancheck.kernels.cuda.error_models import REPRODUCIBLE_DECAY, REPRODUCIBLE_ERRORS
from scancheck.kernels.models import cuda_functions
from scancheck.kernels.models.cuda_functions import Float32Array, on_array

SOURCES = Path(cuda_functions.__file__).parents[1] / "cuda/sources"
NAMES = tuple(REPRODUCIBLE_ERRORS)
SMALLEST_NORMAL = 2.0**-126
OVERFLOWS = (2.0 - 2.0**-24) * 2.0**127  # from here on fp32 rounds to infinity
U = 2.0**-24


def every_value(fmt: Format) -> Float32Array:
    """Every finite number of a 16-bit format."""
    largest = 2 ** (fmt.precision - 1) * (fmt.emax - fmt.emin + 2)
    values = from_ordinal(fmt, np.arange(-largest + 1, largest))
    return values[np.isfinite(values)].astype(np.float32)


def strided() -> Float32Array:
    """About a million of all fp32 numbers, NaN and infinities among them."""
    bits = np.arange(0, 2**32, 4093, dtype=np.uint32)
    return bits.view(np.float32)


def around_changes() -> Float32Array:
    """Neighbours of the points where a reduction takes the next integer."""
    halves = np.arange(-260, 260) / 2
    points = np.concatenate([halves, halves * np.log(2.0), [0.25, 0.5, 0.75, 1.5]])
    bits = points.astype(np.float32).view(np.int32)
    return (bits[:, None] + np.arange(-20, 21, dtype=np.int32)).view(np.float32).ravel()


def inputs() -> Float32Array:
    """Every fp16 and bf16 number, and fp32 numbers of all sizes."""
    parts = (every_value(FP16), every_value(BF16), strided(), around_changes())
    return np.concatenate(parts)


def exact(name: str, x: Float32Array) -> np.ndarray:
    """The function in fp64, whose own error of some 2**-50 does not show."""
    wide = x.astype(np.float64)
    small = np.exp(-np.abs(wide))
    sigmoid = np.where(wide >= 0, 1.0, small) / (1.0 + small)
    match name:
        case "softplus":
            return np.maximum(wide, 0.0) + np.log1p(small)
        case "sigmoid":
            return np.where(np.isnan(wide), np.nan, sigmoid)
        case "silu":
            return np.where(wide < -1000.0, -0.0, wide * sigmoid)
        case _:
            return np.asarray(getattr(np, name)(wide))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_error_is_within_the_stated_one(name: str) -> None:
    """On every fp16 and bf16 number and a million fp32 ones the error model holds."""
    x = inputs()
    found, wanted = on_array(name, x).astype(np.float64), exact(name, x)
    size = np.abs(wanted)
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    assert np.array_equal(np.abs(found) == np.inf, size >= OVERFLOWS)
    infinite = np.isinf(found)
    assert np.array_equal(np.sign(found[infinite]), np.sign(wanted[infinite]))
    normal = (size >= SMALLEST_NORMAL) & (size < OVERFLOWS)
    if name == "silu":  # there sigmoid is flushed
        normal &= x > -87.3
    model = REPRODUCIBLE_ERRORS[name]
    allowed = (model.e0 + model.e1 * np.abs(x[normal])) * U * size[normal]
    assert (np.abs(found - wanted)[normal] <= allowed).all()
    assert (np.abs(found - wanted)[size < SMALLEST_NORMAL] <= SMALLEST_NORMAL).all()


@pytest.mark.parametrize(
    ("name", "x", "wanted"),
    [
        ("exp", 0.0, 1.0),
        ("exp", -0.0, 1.0),
        ("exp", -np.inf, 0.0),
        ("exp", np.inf, np.inf),
        ("exp", 88.72284, np.inf),
        ("exp", -87.33655, 0.0),
        ("exp2", 0.0, 1.0),
        ("exp2", 127.0, 2.0**127),
        ("exp2", 128.0, np.inf),
        ("exp2", -126.0, 2.0**-126),
        ("exp2", -126.00001, 0.0),
        ("exp2", -np.inf, 0.0),
        ("expm1", 0.0, 0.0),
        ("expm1", 1e-40, np.float32(1e-40)),
        ("expm1", 3e-8, np.float32(3e-8)),
        ("expm1", -np.inf, -1.0),
        ("expm1", np.inf, np.inf),
        ("log", 1.0, 0.0),
        ("log", 0.0, -np.inf),
        ("log", -0.0, -np.inf),
        ("log", -1.0, np.nan),
        ("log", np.inf, np.inf),
        ("log1p", 0.0, 0.0),
        ("log1p", -1.0, -np.inf),
        ("log1p", -1.5, np.nan),
        ("log1p", np.inf, np.inf),
        ("softplus", 100.0, 100.0),
        ("softplus", -np.inf, 0.0),
        ("softplus", np.inf, np.inf),
        ("sigmoid", 0.0, 0.5),
        ("sigmoid", np.inf, 1.0),
        ("sigmoid", -np.inf, 0.0),
        ("silu", 0.0, 0.0),
        ("silu", -100.0, 0.0),
        ("silu", -np.inf, 0.0),
        ("silu", np.inf, np.inf),
        *((name, np.nan, np.nan) for name in NAMES),
    ],
)
def test_special_values(name: str, x: float, wanted: float) -> None:
    """Zeros, infinities, NaN and the ends of the range give what they should."""
    found = on_array(name, np.array([x], dtype=np.float32))
    np.testing.assert_array_equal(found, np.float32([wanted]))


def test_powers_of_two_are_exact() -> None:
    """exp2 of an integer in range is that power of two."""
    powers = np.arange(-126, 128)
    found = on_array("exp2", powers.astype(np.float32))
    assert np.array_equal(found, 2.0**powers)


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
MODERATE = st.floats(-16.0, 16.0, width=32)


@given(x=st.one_of(FLOATS, MODERATE), y=st.one_of(FLOATS, MODERATE))
def test_exp2_of_a_product_rounds_no_product(x: float, y: float) -> None:
    """exp2_product is off by 1.32 u however large the product is."""
    found = float(cuda_functions.exp2_product(np.float32(x), np.float32(y)))
    with mpmath.workdps(60):
        product = mpmath.mpf(x) * mpmath.mpf(y)
        wanted = mpmath.mpf(2) ** min(max(product, -1000), 1000)
        if wanted < SMALLEST_NORMAL:
            assert 0.0 <= found <= SMALLEST_NORMAL
        elif wanted >= 2.0**128 * (1 - 2 * U):
            assert found >= 2.0**128 * (1 - 4 * U)
        else:
            assert abs(found - wanted) <= REPRODUCIBLE_DECAY.e0 * U * wanted


def source(name: str) -> str:
    """The text of a CUDA header."""
    return (SOURCES / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["EXP2", "EXPM1", "LOG1P", "LOG", "RECIPROCAL"])
def test_cuda_source_has_the_same_coefficients(name: str) -> None:
    """The polynomials of the CUDA functions are those of the CPU's."""
    (values,) = re.findall(
        rf"constexpr float {name}\[\] = {{(.*?)}};", source("function_parts.cuh"), re.S
    )
    found = tuple(float.fromhex(value.strip(" \nf")) for value in values.split(","))
    assert found == getattr(cuda_functions, name)


HOST = r"""
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>
#define __device__
#define __forceinline__ inline
static float __uint_as_float(unsigned b) { float x; memcpy(&x, &b, 4); return x; }
static unsigned __float_as_uint(float x) { unsigned b; memcpy(&b, &x, 4); return b; }
static float __fmaf_rn(float x, float y, float z) { return std::fmaf(x, y, z); }
static float __fadd_rn(float x, float y) { return x + y; }
static float __fsub_rn(float x, float y) { return x - y; }
static float __fmul_rn(float x, float y) { return x * y; }
static float __int2float_rn(int i) { return (float)i; }
using std::fabs;
#define fabsf std::fabs
"""
MAIN = r"""
int main() {
  float x;
  while (fread(&x, 4, 1, stdin) == 1) {
    const float y[] = {CALLS};
    fwrite(y, 4, sizeof y / 4, stdout);
  }
}
"""


def host_source() -> str:
    """Reproducible of functions.cuh as C++, its three asm lines spelt out."""
    text = source("functions.cuh").replace(
        '#include "function_parts.cuh"', source("function_parts.cuh")
    )
    text = text[: text.index("struct Tabulated")] + "}\n"
    bodies = {
        "max.NaN": "x != x ? x : y != y ? y : x < y ? y : x",
        "min.NaN": "x != x ? x : y != y ? y : x > y ? y : x",
        "fma.rn.ftz": "x != x ? x : std::fabs(value) < 0x1p-126f ? 0.0f : value",
    }
    for instruction, body in bodies.items():
        pattern = rf'asm\("{re.escape(instruction)}[^;]*;"[^;]*;'
        text, count = re.subn(pattern, f"result = {body};", text)
        assert count == 1
    calls = ", ".join(
        f"scancheck::Reproducible::{'exp2_' if name == 'exp2' else name}(x)"
        for name in NAMES
    )
    return HOST + text + MAIN.replace("CALLS", calls)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_cuda_source_gives_the_same_bits_on_the_host(tmp_path: Path) -> None:
    """functions.cuh, compiled as C++, equals the CPU's functions bit by bit."""
    (tmp_path / "functions.cpp").write_text(host_source(), encoding="utf-8")
    options = ["-O1", "-std=c++17", "-ffp-contract=off", "-march=native", "-w"]
    subprocess.run(
        ["g++", *options, "functions.cpp", "-o", "functions"], cwd=tmp_path, check=True
    )
    x = inputs()
    output = subprocess.run(
        [tmp_path / "functions"], input=x.tobytes(), capture_output=True, check=True
    ).stdout
    found = np.frombuffer(output, np.float32).reshape(len(x), len(NAMES))
    for column, name in enumerate(NAMES):
        wanted = on_array(name, x)
        np.testing.assert_array_equal(found[:, column], wanted, err_msg=name)
        number = ~np.isnan(wanted)
        same_sign = np.signbit(found[number, column]) == np.signbit(wanted[number])
        assert same_sign.all(), name
