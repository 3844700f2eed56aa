"""Planted bug: outputs after the last full chunk are never written."""

import torch
from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import CHUNK
from scancheck.kernels.faulty.chunked_torch import scan as right_scan


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h, whose tail is what the memory held, and the final state, which is right."""
    h, final_state = right_scan(decay, drive, initial_state)
    written = h.shape[1] - h.shape[1] % CHUNK
    return torch.cat([h[:, :written], torch.empty_like(h[:, written:])], 1), final_state
