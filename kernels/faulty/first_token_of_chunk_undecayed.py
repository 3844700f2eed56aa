"""Planted bug: the first token of every chunk does not decay what came before it."""

import torch
from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import CHUNK
from scancheck.kernels.faulty.chunked_torch import scan as right_scan


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state; wrong from the first token that has a past."""
    first = torch.arange(decay.shape[1], device=decay.device) % CHUNK == 0
    first = first.reshape(-1, *(1,) * (decay.ndim - 2))
    return right_scan(decay.masked_fill(first, 1.0), drive, initial_state)
