"""Planted bug: delta_bias is cast to bf16 before it is added."""

import torch

from scancheck.kernels.faulty.calling_form import Form, Given
from scancheck.kernels.faulty.short_formats import rounded


def given(tensors: Given) -> Given:
    """The tensors of the call, delta_bias with the digits of bf16."""
    if "delta_bias" not in tensors:
        return tensors
    return tensors | {"delta_bias": rounded(tensors["delta_bias"], torch.bfloat16)}


FORM = Form(given=given)
