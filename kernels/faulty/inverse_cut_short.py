"""Planted bug: Neumann's product for the inverse ends after two doublings.

(I - N)(I + N^2)(I + N^4) has the powers of N up to the seventh: a token's error takes
no account of what reaches it through eight or more tokens of its chunk.
"""

import torch
from torch import Tensor

from scancheck.kernels.faulty.chunk_form_torch import ChunkParts

DOUBLINGS = 2


def cut_short(lower: Tensor) -> Tensor:
    """The first factors of the product that is (I + N)^-1."""
    unit = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
    result, power = unit - lower, lower
    for _ in range(DOUBLINGS):
        power = power @ power
        result = result @ (unit + power)
    return result


FORM = ChunkParts(inverse=cut_short)
