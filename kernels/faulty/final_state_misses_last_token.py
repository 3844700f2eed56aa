"""Planted bug: the final state is read before the last token is added."""

from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import scan as right_scan


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h, right, and the state before the last token."""
    h, _ = right_scan(decay, drive, initial_state)
    _, before_last = right_scan(decay[:, :-1], drive[:, :-1], initial_state)
    return h, before_last
