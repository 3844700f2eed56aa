"""Planted bug: the gate gradient's reverse sum is formed as total minus prefix.

With s_t = h_t hbar_t - b_t G_t the gradient of log a_t is the sum of s over t and all
later tokens. Formed as total minus prefix, what is small late in the sequence is lost
in the roundings of what was large before.
"""

from typing import Any

import torch
from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import scan as right_scan
from scancheck.kernels.faulty.own_backward_torch import adjoint_states, states_before

LEAST = 1e-3  # below it the direct form is taken


class PrefixDifference(torch.autograd.Function):
    """The right scan, with a gate gradient by differences of sums."""

    @staticmethod
    def forward(
        ctx: Any, decay: Tensor, drive: Tensor, initial_state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """h and the final state."""
        h, final_state = right_scan(decay, drive, initial_state)
        ctx.save_for_backward(decay, drive, h, initial_state)
        return h.clone(), final_state.clone()

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> Any:
        """Gradients of decay, drive and initial state."""
        decay, drive, h, initial_state = ctx.saved_tensors
        h_bar, final_bar = bars
        adjoint, start = adjoint_states(decay, h_bar, final_bar)
        terms = h * h_bar - drive * adjoint
        terms[:, -1] += h[:, -1] * final_bar
        prefix = terms.cumsum(1)
        later = prefix[:, -1:] - prefix + terms
        direct = adjoint * states_before(h, initial_state)
        divisor = decay.where(decay.abs() > LEAST, torch.ones_like(decay))
        by_sums = later / divisor
        return by_sums.where(decay.abs() > LEAST, direct), adjoint, start


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state, right; the gate gradient has lost its small values."""
    if decay.shape[1] == 0:
        return right_scan(decay, drive, initial_state)
    own: Any = PrefixDifference
    outputs: tuple[Tensor, Tensor] = own.apply(decay, drive, initial_state)
    return outputs
