"""Planted bug: the backward of the pairwise combine takes each leaf on its own.

(a1, b1) then (a2, b2) is (a1 a2, a2 b1 + b2). Going back, b is given no influence on
a2, as in a scan that differentiates leaf by leaf; forward nothing is wrong.
"""

import torch
from torch import Tensor


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state, right; the gradient of the decay is wrong from T = 2."""
    products, states = decay, drive
    offset = 1
    while offset < decay.shape[1]:
        later = products[:, offset:]
        combined = later.detach() * states[:, :-offset] + states[:, offset:]
        product = later * products[:, :-offset]
        states = torch.cat([states[:, :offset], combined], 1)
        products = torch.cat([products[:, :offset], product], 1)
        offset *= 2
    h = products * initial_state[:, None] + states
    return h, h[:, -1].clone()
