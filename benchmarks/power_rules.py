"""The rules that kernel tests decide by, beside scancheck's: accept or reject a tensor.

All see the same tensor of the kernel. What they compare it with is what their users
compare it with: the naive PyTorch loop, in fp32 for short formats.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

RTOL, ATOL = 1e-4, 1e-5
RMS_RATIO = 0.005
RMS_FLOOR = 1e-8  # added to the reference's RMS
ABSOLUTE_ESCAPE = 1e-6  # a largest difference that is accepted at once
TIMES_BASELINE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One tensor of a kernel and what the rules hold it against."""

    got: FloatArray
    reference: FloatArray  # naive loop, in fp32 for short formats
    exact: FloatArray  # the oracle's value
    baseline: FloatArray  # naive loop in the storage format
    dtype: torch.dtype  # the tensor's own


def assert_close_accepts(tensor: Comparison) -> bool:
    """torch.testing.assert_close with the default tolerances of the dtype."""
    got, want = _as_stored(tensor)
    try:
        torch.testing.assert_close(got, want)
    except AssertionError:
        return False
    return True


def allclose_accepts(tensor: Comparison) -> bool:
    """torch.allclose with rtol 1e-4 and atol 1e-5, in every dtype."""
    got, want = _as_stored(tensor)
    wide = torch.float64
    return torch.allclose(got.to(wide), want.to(wide), rtol=RTOL, atol=ATOL)


def rms_ratio_accepts(tensor: Comparison) -> bool:
    """RMS(got - reference) / (RMS(reference) + 1e-8) below 0.005.

    As flash-linear-attention's tests do; a largest difference of at most 1e-6 is
    accepted before.
    """
    if tensor.got.size == 0:
        return True
    if np.isnan(tensor.got).any() or np.isnan(tensor.reference).any():
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        off = tensor.got - tensor.reference
        if np.max(np.abs(off)) <= ABSOLUTE_ESCAPE:
            return True
        size = np.sqrt(np.mean(tensor.reference**2))
        return bool(np.sqrt(np.mean(off**2)) / (size + RMS_FLOOR) < RMS_RATIO)


def twice_baseline_accepts(tensor: Comparison) -> bool:
    """max |got - exact| at most twice max |baseline - exact| (FlashAttention)."""
    if tensor.got.size == 0:
        return True
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.max(np.abs(tensor.got - tensor.exact))
        allowed = TIMES_BASELINE * np.max(np.abs(tensor.baseline - tensor.exact))
        return bool(error <= allowed)


def _as_stored(tensor: Comparison) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in the dtype of the kernel's tensor."""
    got, want = (
        torch.from_numpy(np.array(values)).to(tensor.dtype)
        for values in (tensor.got, tensor.reference)
    )
    return got, want


RULES: dict[str, Callable[[Comparison], bool]] = {
    "assert_close": assert_close_accepts,
    "allclose_1e4": allclose_accepts,
    "rms_0005": rms_ratio_accepts,
    "twice_baseline": twice_baseline_accepts,
}
LABELS = {
    "scancheck": "scancheck",
    "assert_close": "assert_close defaults",
    "allclose_1e4": "rtol 1e-4, atol 1e-5",
    "rms_0005": "RMS ratio 0.005",
    "twice_baseline": "twice the baseline's error",
}
