"""Planted bug: the initial state enters the first chunk alone, no carry."""

import torch
from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import (
    add_carries,
    chain_carries,
    scan_chunks,
)


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h, right in the first chunk, and a final state that forgot the initial one."""
    local = scan_chunks(decay, drive)
    from_zero = torch.zeros_like(initial_state)
    _, *later, final_state = chain_carries(local.totals, from_zero)
    return add_carries(local, [initial_state, *later], decay.shape[1]), final_state
