"""selective_scan's tensors, arranged for a model and back.

Arrays have time in front, and B and C are spread over the channels that share them:
[T, B, D], and [T, B, D, N] (or [1, 1, D, N] when constant) for keys and states.
"""

import numpy as np
import torch

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.reduction import ascending_sum, sum_over_tokens
from scancheck.kernels.models.tensors import format_of, to_array, to_tensor

NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state")
CHANNEL_SEQUENCES = frozenset({"u", "delta", "z"})
KEYS = frozenset({"B", "C"})

Tensors = tuple[torch.Tensor | None, ...]


def given_tensors(tensors: Tensors) -> dict[str, torch.Tensor]:
    """The op's inputs by name, without the absent ones."""
    named = zip(NAMES, tensors, strict=True)
    return {name: tensor for name, tensor in named if tensor is not None}


def arranged(
    arithmetic: Arithmetic, given: dict[str, torch.Tensor]
) -> dict[str, Array]:
    """The inputs as arrays; an initial state that is not given is zeros."""
    inputs = {}
    for name, tensor in given.items():
        x = arithmetic.lift(to_array(tensor))
        if name in CHANNEL_SEQUENCES:
            x = np.ascontiguousarray(x.transpose(2, 0, 1))
        elif name in KEYS:
            x = _keys(x, given["u"].shape[1])
        inputs[name] = x
    if "initial_state" not in inputs:
        batch, channels, _ = given["u"].shape
        shape = (batch, channels, given["A"].shape[1])
        inputs["initial_state"] = np.zeros(shape, arithmetic.dtype)
    return inputs


def _keys(x: Array, channels: int) -> Array:
    """[D, N], [B, N, L] or [B, G, N, L] -> [1, 1, D, N] or [L, B, D, N]."""
    match x.ndim:
        case 2:
            return x[None, None]
        case 3:
            x = x[:, None]
    by_group = x.transpose(3, 0, 1, 2)
    return np.repeat(by_group, channels // x.shape[1], axis=2)


def _keys_back(arithmetic: Arithmetic, kbar: Array, given: torch.Tensor) -> Array:
    """The cotangents [L, B, D, N] summed to the layout of the given B or C."""
    if given.ndim == 2:
        return sum_over_tokens(arithmetic, kbar)
    steps, batch, channels, states = kbar.shape
    groups = given.shape[1] if given.ndim == 4 else 1
    kbar = kbar.reshape(steps, batch, groups, channels // groups, states)
    summed = ascending_sum(arithmetic, kbar, 3).transpose(1, 2, 3, 0)
    return summed if given.ndim == 4 else summed[:, 0]


def gradient_tensors(
    arithmetic: Arithmetic,
    gradients: dict[str, Array],
    given: dict[str, torch.Tensor],
) -> list[torch.Tensor | None]:
    """The gradients in the layout and dtype of the inputs, in the order of `NAMES`."""
    tensors: list[torch.Tensor | None] = []
    for name in NAMES:
        if name not in given:
            tensors.append(None)
            continue
        x = gradients[name]
        if name in CHANNEL_SEQUENCES:
            x = x.transpose(1, 2, 0)
        elif name in KEYS:
            x = _keys_back(arithmetic, x, given[name])
        tensors.append(to_tensor(format_of(given[name]), x))
    return tensors
