"""Planted bug: the slope of silu is taken as sigmoid(z), a product rule forgotten."""

import torch
from torch import Tensor
from torch.nn.functional import silu

from scancheck.kernels.faulty.calling_form import Form


def gate(z: Tensor) -> Tensor:
    """silu(z), right, with the gradient of z sigmoid(constant)."""
    constant = z.detach()
    return silu(constant) + (z - constant) * torch.sigmoid(constant)


FORM = Form(gate=gate)
