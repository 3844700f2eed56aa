"""Planted bug: the sequence output goes through bf16; the claim is fp32."""

import torch
from torch import Tensor

from scancheck.kernels.faulty.calling_form import Form
from scancheck.kernels.faulty.short_formats import rounded


def stored(sequence: Tensor, like: Tensor) -> Tensor:
    """The output in its own format, with the digits of bf16."""
    return rounded(sequence, torch.bfloat16).to(like.dtype)


FORM = Form(stored=stored)
