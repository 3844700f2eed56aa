"""The CPU model of the CUDA selective_scan as one differentiable call."""

from dataclasses import replace
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from scancheck.kernels.cuda.selective_scan import problem_of
from scancheck.kernels.models.cuda_selective_scan import selective_scan
from scancheck.kernels.models.of_cuda_kernels import (
    NAMES,
    Device,
    selective_scan_gradients,
)

Tensors = dict[str, torch.Tensor]


def differentiable(
    order: str, variant: str, state: str, tensors: Tensors, delta_softplus: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """y [B, D, L] and the last state [B, D, N] of tensors by name, as on an H200."""
    run: Any = _SelectiveScan.apply
    how = order, variant, state, delta_softplus
    y, last = run(how, tuple(tensors), *tensors.values())
    return y, last


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        how: tuple[str, str, str, bool],
        names: tuple[str, ...],
        *given: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.how, ctx.names = how, names
        ctx.save_for_backward(*given)
        order, variant, state, softplus = how
        tensors: Any = dict(zip(names, given, strict=True))
        return selective_scan(
            order, variant, **tensors, delta_softplus=softplus, state=state
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[Any, ...]:
        _, variant, state, softplus = ctx.how
        inputs = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        every = {name: inputs.get(name) for name in NAMES}
        problem = replace(problem_of(every, Device().shared), state=state)
        found = selective_scan_gradients(variant, problem, inputs, cotangents, softplus)
        return None, None, *(found[name] for name in ctx.names)
