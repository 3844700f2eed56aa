"""What other tests compare a kernel with: the op's definition as a loop in PyTorch.

One step of the recurrence per token, each operation rounded to one format, gradients by
autograd. In fp32 it is the reference of most kernel tests; in the storage format it is
the baseline of FlashAttention's rule.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import silu, softplus

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopResult:
    """Outputs by name, and gradients by input, as float64 arrays."""

    outputs: dict[str, FloatArray]
    gradients: dict[str, FloatArray]


def run_loop(
    op: str,
    tensors: Mapping[str, FloatArray],
    switches: Mapping[str, bool],
    cotangents: Mapping[str, FloatArray] | None,
    dtype: torch.dtype,
) -> LoopResult:
    """The loop of an op with all tensors, states included, in `dtype`."""
    leaves = {
        name: torch.from_numpy(np.array(values)).to(dtype).requires_grad_()
        for name, values in tensors.items()
    }
    outputs = LOOPS[op](**leaves, **switches)
    gradients = {}
    if cotangents:
        ends = [name for name in cotangents if outputs[name].requires_grad]
        found = torch.autograd.grad(
            [outputs[name] for name in ends],
            list(leaves.values()),
            [torch.from_numpy(np.array(cotangents[n])).to(dtype) for n in ends],
            allow_unused=True,
            materialize_grads=True,
        )
        gradients = dict(zip(leaves, map(_values, found), strict=True))
    return LoopResult(
        outputs={name: _values(tensor) for name, tensor in outputs.items()},
        gradients=gradients,
    )


def _values(tensor: Tensor) -> FloatArray:
    return np.asarray(tensor.detach().to(torch.float64).numpy())


def linear_scan(
    *,
    b: Tensor,
    a: Tensor | None = None,
    g: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> dict[str, Tensor]:
    """h_t = a_t h_{t-1} + b_t over [B, T, D]."""
    decay = torch.exp(g) if a is None and g is not None else a
    state = initial_state
    if state is None:
        state = b.new_zeros(b.shape[0], b.shape[2])
    states = []
    for token_decay, token in zip(decay.unbind(1), b.unbind(1), strict=True):
        state = token_decay * state + token
        states.append(state)
    h = torch.stack(states, 1) if states else torch.zeros_like(b)
    return {"h": h, "final_state": state}


def selective_scan(
    *,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    delta_softplus: bool = False,
) -> dict[str, Tensor]:
    """h_t = exp(d_t A) h_{t-1} + d_t B_t u_t, y_t = (C_t h_t + D u_t) silu(z_t)."""
    batch, channels, length = u.shape
    step = delta if delta_bias is None else delta + delta_bias[:, None]
    if delta_softplus:
        step = softplus(step)
    keys, queries = _per_channel(B, u), _per_channel(C, u)
    state = u.new_zeros(batch, channels, A.shape[1])
    if initial_state is not None:
        state = initial_state
    rows = []
    for t in range(length):
        decay = torch.exp(step[:, :, t, None] * A)
        drive = (step[:, :, t] * u[:, :, t])[..., None] * keys[..., t]
        state = decay * state + drive
        rows.append((state * queries[..., t]).sum(-1))
    y = torch.stack(rows, 2) if rows else torch.zeros_like(u)
    if D is not None:
        y = y + D[:, None] * u
    if z is not None:
        y = y * silu(z)
    return {"y": y, "last_state": state}


def _per_channel(keys: Tensor, u: Tensor) -> Tensor:
    """B or C as [B, D, N, L]."""
    batch, channels, length = u.shape
    match keys.ndim:
        case 2:
            return keys[None, :, :, None].expand(batch, channels, -1, length)
        case 3:
            return keys[:, None].expand(-1, channels, -1, -1)
        case _:
            return keys.repeat_interleave(channels // keys.shape[1], 1)


LOOPS = {"linear_scan": linear_scan, "selective_scan": selective_scan}
