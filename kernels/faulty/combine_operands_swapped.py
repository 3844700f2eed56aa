"""Planted bug: the combine inside a chunk takes its two operands in the wrong order.

(a1, b1) then (a2, b2) is (a1 a2, a2 b1 + b2); here it is (a1 a2, a1 b2 + b1).
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
    """h and the final state; wrong from the second token of a chunk on."""
    decays, drives = split_into_chunks(decay, drive)
    tokens = zip(decays.unbind(2), drives.unbind(2), strict=True)
    product, state = next(tokens)
    products, states = [product], [state]
    for a, b in tokens:
        state = product * b + state
        product = product * a
        products.append(product)
        states.append(state)
    local = LocalScan(h=torch.stack(states, 2), decay=torch.stack(products, 2))
    *entering, final_state = chain_carries(local.totals, initial_state)
    return add_carries(local, entering, decay.shape[1]), final_state
