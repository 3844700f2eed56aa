"""Planted bug: sums of log decays inside a chunk are kept in bf16."""

import torch
from torch import Tensor

from scancheck.kernels.faulty.calling_form import Form
from scancheck.kernels.faulty.chunked_torch import CHUNK
from scancheck.kernels.faulty.short_formats import passed_through


def decay(step: Tensor, A: Tensor) -> Tensor:
    """exp of differences of the rounded sums, which stand for the decays."""
    log_decay = step[..., None] * A
    pieces = [rounded_differences(part) for part in torch.split(log_decay, CHUNK, 1)]
    return torch.exp(torch.cat(pieces, 1))


def rounded_differences(log_decay: Tensor) -> Tensor:
    """What the sums of one chunk, rounded to bf16, make of its log decays."""
    sums = log_decay.detach().double().cumsum(1).bfloat16().double()
    kept = torch.diff(sums, dim=1, prepend=torch.zeros_like(sums[:, :1]))
    return passed_through(log_decay, kept.to(log_decay.dtype))


FORM = Form(decay=decay)
