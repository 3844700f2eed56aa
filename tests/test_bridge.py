"""Values cross into torch and back without a changed bit."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scancheck.bridge import bits_differ, from_torch, to_torch, torch_dtype
from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS, FloatArray


def all_values(dtype_name: str) -> FloatArray:
    """Every value of a short format, NaN apart, read from its bit patterns."""
    if dtype_name.startswith("fp8"):
        codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
        values = codes.view(torch_dtype(dtype_name)).double().numpy()
        return np.asarray(values[~np.isnan(values)])
    patterns = np.arange(2**16, dtype=np.uint16)
    if dtype_name == "fp16":
        values = patterns.view(np.float16).astype(np.float64)
    else:
        short = (patterns.astype(np.uint32) << 16).view(np.float32)
        values = short[~np.isnan(short)].astype(np.float64)
    return values[~np.isnan(values)]


@pytest.mark.parametrize("dtype_name", ["fp8_e4m3", "fp8_e5m2", "fp16", "bf16"])
def test_every_short_value_crosses_both_ways(dtype_name: str) -> None:
    """Each value has bits of its own in torch, and comes back as it was."""
    values = all_values(dtype_name)
    tensor = to_torch(values, dtype_name)
    back = from_torch(tensor)
    bits = torch.uint8 if tensor.dtype.itemsize == 1 else torch.int16
    assert tensor.dtype == torch_dtype(dtype_name)
    assert np.unique(tensor.view(bits).numpy()).size == values.size
    assert not bits_differ(back, values).any()


@given(st.floats(width=32))
def test_fp32_values_cross_both_ways(value: float) -> None:
    """Any fp32 value, NaN and infinities among them, comes back as it was."""
    values = np.array([value])
    assert not bits_differ(from_torch(to_torch(values, "fp32")), values).any()


@given(st.floats())
def test_fp64_values_cross_both_ways(value: float) -> None:
    """Any fp64 value comes back as it was."""
    values = np.array([value])
    assert not bits_differ(from_torch(to_torch(values, "fp64")), values).any()


@pytest.mark.parametrize(
    ("dtype_name", "value"),
    [
        ("fp16", 1 + 2**-11 + 2**-40),  # torch's cast rounds this twice
        ("bf16", 1 + 2**-8 + 2**-40),
        ("fp16", 65520.0),
        ("fp8_e4m3", 1 + 2**-4 + 2**-40),
        ("fp8_e4m3", 480.0),  # torch's cast saturates
        ("fp8_e4m3", float("inf")),
        ("fp8_e5m2", 61440.0),
        ("fp32", 2.0**-150),
        ("fp32", 0.1),
    ],
)
def test_value_outside_the_format_is_refused(dtype_name: str, value: float) -> None:
    """A value that the format lacks raises with its place, and is never rounded."""
    values = np.zeros((2, 3))
    values[1, 2] = value
    with pytest.raises(ValueError, match=rf"{dtype_name}.*at \(1, 2\)"):
        to_torch(values, dtype_name)


def test_unknown_format_is_refused() -> None:
    """A format without a torch dtype of ours raises CaseInvalid with the known ones."""
    with pytest.raises(CaseInvalid, match="bf16"):
        to_torch(np.zeros(1), "fp7")


@pytest.mark.parametrize("dtype_name", FORMATS)
def test_both_sides_own_their_memory(dtype_name: str) -> None:
    """Writing to either side leaves the other as it was."""
    values = np.ones((2, 2)).T
    tensor = to_torch(values, dtype_name)
    back = from_torch(tensor)
    values[:] = 2.0
    assert tensor.eq(1.0).all()
    tensor.fill_(3.0)
    assert (back == 1.0).all()
    assert tensor.is_contiguous()
    assert back.flags.c_contiguous


def test_gradients_and_strides_do_not_matter() -> None:
    """A transposed tensor inside a graph gives its values."""
    tensor = torch.arange(6.0, requires_grad=True).view(2, 3).T * 1.0
    assert (from_torch(tensor) == np.arange(6.0).reshape(2, 3).T).all()


def test_bits_differ_tells_zeros_apart_but_not_nan() -> None:
    """Signed zeros differ, neighbours differ, NaN of any payload are one value."""
    payload = np.array([0x7FF8_0000_0000_0001], dtype=np.int64).view(np.float64)[0]
    left = np.array([0.0, 1.0, np.nan, np.nan, np.inf])
    right = np.array([-0.0, np.nextafter(1.0, 2.0), payload, 1.0, np.inf])
    assert bits_differ(left, right).tolist() == [True, True, False, True, False]
