"""Planted bug: what roundings lost is added up without the decay of the state."""

import torch
from torch import Tensor

from scancheck.kernels.faulty.compensated_torch import two_products, two_sums


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state, off by what should have decayed."""
    state, lost = initial_state, torch.zeros_like(initial_state)
    states = []
    for a, b in zip(decay.unbind(1), drive.unbind(1), strict=True):
        product, of_product = two_products(a, state)
        state, of_sum = two_sums(product, b)
        lost = lost + (of_product + of_sum)
        states.append(state + lost)
    return torch.stack(states, 1), state + lost
