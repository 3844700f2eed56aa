"""Planted bug: softplus is log(1 + exp(x)), which rounds to 0 far below zero."""

import torch
from torch import Tensor

from scancheck.kernels.faulty.calling_form import Form

THRESHOLD = 20.0  # above it softplus(x) is x to fp32


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), with the digits that 1 + exp(x) keeps."""
    low = torch.log(1.0 + x.clamp(max=THRESHOLD).exp())
    return torch.where(x > THRESHOLD, x, low)


FORM = Form(softplus=softplus)
