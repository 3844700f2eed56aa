"""Planted bug: the gradient of A is written by one batch row, not summed over them."""

import torch
from torch import Tensor

from scancheck.kernels.faulty.calling_form import Form


def decay(step: Tensor, A: Tensor) -> Tensor:
    """exp(step A), right; in all rows but the first A counts as a constant."""
    first = step[:1, ..., None] * A
    others = step[1:, ..., None] * A.detach()
    return torch.exp(torch.cat([first, others]))


FORM = Form(decay=decay)
