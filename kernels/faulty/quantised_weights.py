"""A in whole steps of its largest magnitude: the part that two planted bugs share."""

from torch import Tensor

from scancheck.kernels.faulty.short_formats import passed_through


def quantised(A: Tensor, bits: int) -> Tensor:
    """A rounded to 2**bits - 1 levels, symmetric about zero."""
    levels = 2 ** (bits - 1) - 1
    unit = A.detach().abs().max().clamp(min=1e-30) / levels
    return passed_through(A, (A.detach() / unit).round() * unit)
