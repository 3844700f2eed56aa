"""Planted bug: products of decays inside a chunk leave out the token's own decay."""

import torch
from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import CHUNK
from scancheck.kernels.faulty.chunked_torch import scan as right_scan


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state; every token decays by what the token before it should."""
    before = torch.cat([torch.ones_like(decay[:, :1]), decay[:, :-1]], 1)
    first = torch.arange(decay.shape[1], device=decay.device) % CHUNK == 0
    first = first.reshape(-1, *(1,) * (decay.ndim - 2))
    exclusive = before[:, : decay.shape[1]].masked_fill(first, 1.0)
    return right_scan(exclusive, drive, initial_state)
