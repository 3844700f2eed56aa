"""Planted bug: the output pass covers T // C chunks; a partial one stays zero."""

from torch import Tensor
from torch.nn.functional import pad

from scancheck.kernels.faulty.chunked_torch import CHUNK
from scancheck.kernels.faulty.chunked_torch import scan as right_scan


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h, zero after the last full chunk, and the final state, which is right."""
    h, final_state = right_scan(decay, drive, initial_state)
    partial = h.shape[1] % CHUNK
    written = h[:, : h.shape[1] - partial]
    return pad(written, (0, 0) * (h.ndim - 2) + (0, partial)), final_state
