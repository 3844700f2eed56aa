"""Planted bug: exp of all differences of log decays is taken before the mask.

exp(c_t - c_j) overflows for tokens j after t where decay is strong, and 0 times
infinity is NaN.
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


def log_decay(step: Tensor, A: Tensor) -> Tensor:
    """step A, [B, L, D, N]: the scan takes the exponentials."""
    return step[..., None] * A


def scan(
    log_decay: Tensor, drive: Tensor, initial_state: Tensor
) -> tuple[Tensor, Tensor]:
    """h and the final state; NaN where the mask meets infinity."""
    logs, drives = split_into_chunks(log_decay, drive, identity=0.0)
    sums = logs.cumsum(2)
    states = [local_state(sums, drives, token) for token in range(logs.shape[2])]
    local = LocalScan(h=torch.stack(states, 2), decay=sums.exp())
    *entering, final_state = chain_carries(local.totals, initial_state)
    return add_carries(local, entering, log_decay.shape[1]), final_state


def local_state(sums: Tensor, drives: Tensor, token: int) -> Tensor:
    """What a chunk's own tokens leave at one of them."""
    seen = torch.arange(sums.shape[2], device=sums.device) <= token
    mask = seen.to(sums.dtype).reshape(-1, *(1,) * (sums.ndim - 3))
    weights = (sums[:, :, token, None] - sums).exp() * mask
    return (weights * drives).sum(2)


FORM = Form(decay=log_decay, scan=scan)
