"""Planted bug: the state is stored in fp16 after every token; the claim is fp32."""

import torch
from torch import Tensor


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state, both with the precision and range of fp16."""
    state = initial_state
    states = []
    for a, b in zip(decay.unbind(1), drive.unbind(1), strict=True):
        state = (a * state + b).to(torch.float16).to(decay.dtype)
        states.append(state)
    return torch.stack(states, 1), state
