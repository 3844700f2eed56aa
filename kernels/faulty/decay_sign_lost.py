"""Planted bug: the decay is taken as exp(log |a|), which loses its sign."""

import torch
from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import scan as right_scan


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state; wrong where a decay is negative."""
    return right_scan(torch.where(decay < 0.0, -decay, decay), drive, initial_state)
