"""Planted bug: the gradient of a gate passes a clamp that the forward pass lacks."""

from torch import Tensor, where

from scancheck.kernels.faulty.chunked_torch import scan as right_scan

LEAST = 0.5


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state, right; decays below the clamp get no gradient."""
    clamped = where(decay < LEAST, decay.detach(), decay)
    return right_scan(clamped, drive, initial_state)
