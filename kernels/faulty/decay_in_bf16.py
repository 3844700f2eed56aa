"""Planted bug: the decay of each token is rounded to bf16; the claim is fp32."""

import torch
from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import scan as right_scan
from scancheck.kernels.faulty.short_formats import rounded


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state, with other decays than were given."""
    return right_scan(rounded(decay, torch.bfloat16), drive, initial_state)
