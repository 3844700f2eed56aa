"""Planted bug: the output is also written over an input of its size."""

from torch import Tensor

from scancheck.kernels.faulty.calling_form import Form


def stored(sequence: Tensor, like: Tensor) -> Tensor:
    """The output, right; the input that lent its memory is gone."""
    like.data.copy_(sequence.detach())  # as a kernel does, behind autograd's back
    return sequence.to(like.dtype)


FORM = Form(stored=stored)
