"""Planted bug: every chunk after the first starts from a zero state."""

import torch
from torch import Tensor

from scancheck.kernels.faulty.chunk_form_torch import ChunkParts


def nothing(after: Tensor, local: Tensor) -> Tensor:
    """No state at all."""
    return torch.zeros_like(after)


FORM = ChunkParts(carry=nothing)
