"""Planted bug: the gradient of delta has no part through the drive B delta u."""

from torch import Tensor

from scancheck.kernels.faulty.calling_form import Form


def drive(step: Tensor, x: Tensor, keys: Tensor) -> Tensor:
    """B step u, right; step counts as a constant."""
    return (step.detach() * x)[..., None] * keys


FORM = Form(drive=drive)
