"""Planted bug: the adjoint state is kept in bf16 on its way back."""

from typing import Any

import torch
from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import scan as right_scan
from scancheck.kernels.faulty.own_backward_torch import adjoint_states, states_before
from scancheck.kernels.faulty.short_formats import rounded


class ShortAdjoint(torch.autograd.Function):
    """The right scan, with a backward of short states."""

    @staticmethod
    def forward(
        ctx: Any, decay: Tensor, drive: Tensor, initial_state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """h and the final state."""
        h, final_state = right_scan(decay, drive, initial_state)
        ctx.save_for_backward(decay, h, initial_state)
        return h.clone(), final_state.clone()

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> Any:
        """Gradients of decay, drive and initial state."""
        decay, h, initial_state = ctx.saved_tensors
        h_bar, final_bar = bars
        adjoint, start = adjoint_states(decay, h_bar, final_bar, in_bf16)
        return adjoint * states_before(h, initial_state), adjoint, start


def in_bf16(x: Tensor) -> Tensor:
    """The values that bf16 holds."""
    return rounded(x, torch.bfloat16)


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state, right; gradients have the digits of bf16."""
    if decay.shape[1] == 0:
        return right_scan(decay, drive, initial_state)
    own: Any = ShortAdjoint
    outputs: tuple[Tensor, Tensor] = own.apply(decay, drive, initial_state)
    return outputs
