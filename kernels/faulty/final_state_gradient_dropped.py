"""Planted bug: the final state is handed out without its gradient."""

from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import scan as right_scan


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state, right; nothing flows back from the final state."""
    h, final_state = right_scan(decay, drive, initial_state)
    return h, final_state.detach()
