"""Planted bug: softplus is log1p(exp(x)) for any x, and exp overflows."""

from torch import Tensor

from scancheck.kernels.faulty.calling_form import Form


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), infinite from x = 89 on."""
    return x.exp().log1p()


FORM = Form(softplus=softplus)
