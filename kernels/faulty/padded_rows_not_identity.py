"""Planted bug: the last chunk is filled up with zeros before gates are computed.

A padded row of zeros is no identity: a decay of 0 forgets the state, and in
selective_scan softplus(0 + bias) lets it decay.
"""

from torch import Tensor
from torch.nn.functional import pad

from scancheck.kernels.faulty.calling_form import Form, Given
from scancheck.kernels.faulty.chunked_torch import CHUNK

IN_TIME = ("a", "b", "u", "delta", "z", "B", "C")


def padded(given: Given) -> Given:
    """All tensors with a time axis, zeros appended up to a whole chunk."""
    return given | {
        name: with_zeros(name, x)
        for name, x in given.items()
        if name in IN_TIME and x.ndim > 2
    }


def with_zeros(name: str, x: Tensor) -> Tensor:
    """The tensor with its time axis filled: 1 in linear_scan, the last otherwise."""
    if name in ("a", "b"):
        return pad(x, (0, 0, 0, -x.shape[1] % CHUNK))
    return pad(x, (0, -x.shape[-1] % CHUNK))


FORM = Form(given=padded)
