"""A scan with its backward written out, for planted bugs that get the latter wrong.

G_t = hbar_t + a_{t+1} G_{t+1}, db_t = G_t, da_t = G_t h_{t-1}, d initial = a_1 G_1.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def adjoint_states(
    decay: Tensor,
    h_bar: Tensor,
    final_bar: Tensor,
    kept: Callable[[Tensor], Tensor] = torch.clone,
) -> tuple[Tensor, Tensor]:
    """G [B, T, ...] and the gradient of the initial state; G goes through `kept`."""
    carried, states = final_bar, []
    for a, bar in zip(
        reversed(decay.unbind(1)), reversed(h_bar.unbind(1)), strict=True
    ):
        state = kept(carried + bar)
        states.append(state)
        carried = kept(a * state)
    return torch.stack(states[::-1], 1), carried


def states_before(h: Tensor, initial_state: Tensor) -> Tensor:
    """h_{t-1} at each token."""
    return torch.cat([initial_state[:, None], h[:, :-1]], 1)
