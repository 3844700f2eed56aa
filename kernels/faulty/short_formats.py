"""Values rounded to a shorter format, with the gradient of the identity."""

import torch
from torch import Tensor

TF32_DROPPED_BITS = 13  # of the 23 fraction bits of fp32


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest values of `dtype`, in the format of x."""
    return passed_through(x, x.detach().to(dtype).to(x.dtype))


def rounded_to_tf32(x: Tensor) -> Tensor:
    """fp32 values to the nearest with 10 fraction bits, ties away from zero."""
    bits = x.detach().contiguous().view(torch.int32)
    half = 1 << (TF32_DROPPED_BITS - 1)
    kept = (bits + half) & ~((1 << TF32_DROPPED_BITS) - 1)
    return passed_through(x, kept.view(torch.float32))


def passed_through(x: Tensor, values: Tensor) -> Tensor:
    """`values`, whose gradient goes to x unchanged."""
    return values.detach() + (x - x.detach())
