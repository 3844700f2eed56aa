"""Planted bug: chunks are scanned on their own, and no state is carried."""

import torch
from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import add_carries, scan_chunks


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state; wrong from the second chunk on."""
    local = scan_chunks(decay, drive)
    zeros = [torch.zeros_like(initial_state) for _ in local.totals[1:]]
    entering = [initial_state, *zeros]
    last_decay, last_state = local.totals[-1]
    final_state = last_decay * entering[-1] + last_state
    return add_carries(local, entering, decay.shape[1]), final_state
