"""Planted bug: each chunk is given the state that entered the chunk before it."""

from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import (
    add_carries,
    chain_carries,
    scan_chunks,
)


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h, wrong from the second chunk on, and the final state, which is right."""
    local = scan_chunks(decay, drive)
    *entering, final_state = chain_carries(local.totals, initial_state)
    shifted = [initial_state, *entering[:-1]]
    return add_carries(local, shifted, decay.shape[1]), final_state
