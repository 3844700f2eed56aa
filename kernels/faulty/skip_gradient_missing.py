"""Planted bug: no gradient reaches D."""

from torch import Tensor

from scancheck.kernels.faulty.calling_form import Form


def skip(D: Tensor, x: Tensor) -> Tensor:
    """D u, right; D counts as a constant."""
    return D.detach() * x


FORM = Form(skip=skip)
