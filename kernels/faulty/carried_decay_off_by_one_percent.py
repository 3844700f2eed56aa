"""Planted bug: what is carried over a chunk decays by one per cent too much."""

from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import (
    add_carries,
    chain_carries,
    scan_chunks,
)


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state; wrong once a state has been carried over a whole chunk."""
    local = scan_chunks(decay, drive)
    totals = [(0.99 * carried, state) for carried, state in local.totals]
    *entering, final_state = chain_carries(totals, initial_state)
    return add_carries(local, entering, decay.shape[1]), final_state
