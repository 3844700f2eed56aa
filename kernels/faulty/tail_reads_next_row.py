"""Planted bug: the last chunk is read whole, past the end of the row.

What lies behind a row in memory is the next one; the last row finds the first here.
"""

import torch
from torch import Tensor

from scancheck.kernels.faulty.calling_form import Form, Given
from scancheck.kernels.faulty.chunked_torch import CHUNK

IN_TIME = ("a", "b", "u", "delta", "z", "B", "C")


def overrun(given: Given) -> Given:
    """All tensors with a time axis, the start of the next row appended to a chunk."""
    return given | {
        name: with_next_row(x, 1 if name in ("a", "b") else x.ndim - 1)
        for name, x in given.items()
        if name in IN_TIME and x.ndim > 2
    }


def with_next_row(x: Tensor, time: int) -> Tensor:
    """The tensor, each row followed by as much of the next as the last chunk lacks."""
    missing = min(-x.shape[time] % CHUNK, x.shape[time])
    return torch.cat([x, x.roll(-1, 0).narrow(time, 0, missing)], time)


FORM = Form(given=overrun)
