"""Planted bug: the output is also written over an input of its size."""

import torch
from torch import Tensor

from scancheck.kernels.faulty.calling_form import Form


def stored(sequence: Tensor, like: Tensor) -> Tensor:
    """The output, right; the input that lent its memory is gone."""
    with torch.no_grad():
        like.copy_(sequence)
    return sequence.to(like.dtype)


FORM = Form(stored=stored)
