"""Planted bug: gradients that sum over tokens and batch rows are summed in bf16."""

from typing import Any

import torch
from torch import Tensor

from scancheck.kernels.faulty.calling_form import Form


class Repeated(torch.autograd.Function):
    """A parameter repeated for every token, whose gradient is a sum in bf16."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, rows: int, tokens: int) -> Tensor:
        """[D, ...] as [rows, tokens, D, ...]."""
        return parameter.expand(rows, tokens, *parameter.shape).clone()

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> Any:
        """The sum over rows and tokens, rounded after each addition."""
        (bar,) = bars
        total = torch.zeros_like(bar[0, 0], dtype=torch.bfloat16)
        for part in bar.flatten(0, 1).unbind(0):
            total = (total.to(bar.dtype) + part).bfloat16()
        return total.to(bar.dtype), None, None


def decay(step: Tensor, A: Tensor) -> Tensor:
    """exp(step A)."""
    return torch.exp(step[..., None] * repeated(A, step))


def skip(D: Tensor, x: Tensor) -> Tensor:
    """D u."""
    return repeated(D, x) * x


def repeated(parameter: Tensor, like: Tensor) -> Tensor:
    """The parameter for every row and token of `like`."""
    own: Any = Repeated
    values: Tensor = own.apply(parameter, like.shape[0], like.shape[1])
    return values


FORM = Form(decay=decay, skip=skip)
