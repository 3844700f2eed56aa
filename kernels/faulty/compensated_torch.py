"""Error-free additions and products of fp32, for scans that claim compensation.

Gradients are those of the plain operation: what is lost has none.
"""

import torch
from torch import Tensor


def two_products(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """x y and what its rounding lost; fp64 holds the product of two fp32 exactly."""
    product = x * y
    exact = x.detach().double() * y.detach().double()
    return product, (exact - product.detach().double()).to(x.dtype)


def two_sums(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """x + y and what its rounding lost (Knuth's six additions)."""
    total = x + y
    with torch.no_grad():
        y_seen = total - x
        lost = (x - (total - y_seen)) + (y - y_seen)
    return total, lost.to(x.dtype)
