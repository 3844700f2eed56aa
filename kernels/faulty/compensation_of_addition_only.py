"""Planted bug: only additions are compensated; the claim is compensation in full."""

import torch
from torch import Tensor

from scancheck.kernels.faulty.compensated_torch import two_products, two_sums


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state, with the errors of all products."""
    state, lost = initial_state, torch.zeros_like(initial_state)
    states = []
    for a, b in zip(decay.unbind(1), drive.unbind(1), strict=True):
        product, _ = two_products(a, state)
        state, of_sum = two_sums(product, b)
        lost = a.detach() * lost + of_sum
        states.append(state + lost)
    return torch.stack(states, 1), state + lost
