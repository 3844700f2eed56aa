"""Planted bug: the past is divided out by the running product of decays.

h_t = P_t (S + sum b_j / P_j) inside a chunk, with P the product since its start: right
where P stays in range, infinite or NaN where 1 / P does not.
"""

import torch
from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import (
    LocalScan,
    add_carries,
    chain_carries,
    split_into_chunks,
)


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state; not finite from where a product underflows."""
    decays, drives = split_into_chunks(decay, drive)
    products = torch.stack(running_products(decays), 2)
    inverse = 1.0 / products
    local = LocalScan(h=products * (drives * inverse).cumsum(2), decay=products)
    *entering, final_state = chain_carries(local.totals, initial_state)
    return add_carries(local, entering, decay.shape[1]), final_state


def running_products(decays: Tensor) -> list[Tensor]:
    """The product of decays up to each token of its chunk."""
    first, *rest = decays.unbind(2)
    products = [first]
    for a in rest:
        products.append(a * products[-1])
    return products
