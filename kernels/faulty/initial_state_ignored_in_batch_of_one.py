"""Planted bug: a short cut for a batch of one drops the initial state."""

import torch
from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import scan as right_scan


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state; right for any other batch size."""
    if initial_state.shape[0] == 1:
        initial_state = torch.zeros_like(initial_state)
    return right_scan(decay, drive, initial_state)
