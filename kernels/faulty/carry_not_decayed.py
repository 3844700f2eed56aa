"""Planted bug: the state entering a chunk enters the next one undecayed."""

from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import add_carries, scan_chunks


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state; wrong once a state has been carried over a whole chunk."""
    local = scan_chunks(decay, drive)
    carries = [initial_state]
    for _, state in local.totals:
        carries.append(carries[-1] + state)
    *entering, final_state = carries
    return add_carries(local, entering, decay.shape[1]), final_state
