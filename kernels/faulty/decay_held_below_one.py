"""Planted bug: decays are clamped to 1, as if no gate could amplify."""

from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import scan as right_scan


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state; wrong where a decay is above 1."""
    return right_scan(decay.clamp(max=1.0), drive, initial_state)
