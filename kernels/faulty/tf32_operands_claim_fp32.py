"""Planted bug: decay and state are cut to TF32 before they are multiplied."""

import torch
from torch import Tensor

from scancheck.kernels.faulty.short_formats import rounded_to_tf32


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state; products have fp32 results of TF32 operands."""
    if decay.dtype != torch.float32:  # fp64 has no such mode
        decay, drive = decay.float(), drive.float()
    state = initial_state.float()
    states = []
    for a, b in zip(decay.unbind(1), drive.unbind(1), strict=True):
        state = rounded_to_tf32(a) * rounded_to_tf32(state) + b
        states.append(state)
    return torch.stack(states, 1), state.to(initial_state.dtype)
