"""Planted bug: no gradient reaches the initial state."""

from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import scan as right_scan


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state, right; the initial state counts as a constant."""
    return right_scan(decay, drive, initial_state.detach())
