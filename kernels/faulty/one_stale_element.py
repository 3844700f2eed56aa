"""Planted bug: one output element keeps the value of the token before."""

from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import scan as right_scan


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h, wrong at the middle token of the last lane of row 0; a right final state."""
    h, final_state = right_scan(decay, drive, initial_state)
    middle = h.shape[1] // 2
    last_lane = (-1,) * (h.ndim - 2)
    stale = h[0, middle - 1, *last_lane].clone()
    h = h.clone()
    h[0, middle, *last_lane] = stale
    return h, final_state
