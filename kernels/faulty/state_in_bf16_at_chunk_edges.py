"""Planted bug: the state carried over a chunk edge is stored in bf16."""

import torch
from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import add_carries, scan_chunks
from scancheck.kernels.faulty.short_formats import rounded


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h, and the last stored state."""
    local = scan_chunks(decay, drive)
    carries = [initial_state]
    for chunk_decay, state in local.totals:
        carries.append(rounded(chunk_decay * carries[-1] + state, torch.bfloat16))
    *entering, final_state = carries
    return add_carries(local, entering, decay.shape[1]), final_state
