"""Planted bug: a mask hides an overflow of exp from the outputs, not from gradients.

exp(c_t - c_j) overflows for tokens j after t where decay is strong. `where` puts zero
in its place; its gradient is zero times infinity.
"""

import torch
from torch import Tensor

from scancheck.kernels.faulty.calling_form import Form
from scancheck.kernels.faulty.chunked_torch import (
    LocalScan,
    add_carries,
    chain_carries,
    split_into_chunks,
)
from scancheck.kernels.faulty.mask_after_exponential import log_decay


def scan(logs: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state, right; gradients are NaN where exp is infinite."""
    log_decays, drives = split_into_chunks(logs, drive, identity=0.0)
    sums = log_decays.cumsum(2)
    states = [local_state(sums, drives, token) for token in range(sums.shape[2])]
    local = LocalScan(h=torch.stack(states, 2), decay=sums.exp())
    *entering, final_state = chain_carries(local.totals, initial_state)
    return add_carries(local, entering, logs.shape[1]), final_state


def local_state(sums: Tensor, drives: Tensor, token: int) -> Tensor:
    """What a chunk's own tokens leave at one of them."""
    seen = torch.arange(sums.shape[2], device=sums.device) <= token
    seen = seen.reshape(-1, *(1,) * (sums.ndim - 3))
    weights = (sums[:, :, token, None] - sums).exp()
    return (torch.where(seen, weights, 0.0) * drives).sum(2)


FORM = Form(decay=log_decay, scan=scan)
