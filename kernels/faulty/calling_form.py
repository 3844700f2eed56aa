"""linear_scan and selective_scan in their calling form, around any elementwise scan.

A scan takes decay and drive [B, T, ...] and the initial state [B, ...] in one format,
and returns h [B, T, ...] and the final state [B, ...]. Computation is in fp32, or in
fp64 for fp64 tensors; sequence outputs are rounded to the storage format, states are
not.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

Scan = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

# Above it softplus(x) is x: exp(-40) / 40 is below the unit roundoff of fp64.
SOFTPLUS_THRESHOLD = 40.0


def linear_scan(
    scan: Scan, *, a: Tensor, b: Tensor, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """h [B, T, D] in the format of `a`, and final_state [B, D]."""
    decay, drive = widened(a), widened(b)
    if initial_state is None:
        initial_state = decay.new_zeros(a.shape[0], a.shape[2])
    h, final_state = scan(decay, drive, initial_state)
    return h.to(a.dtype), final_state


def selective_scan(
    scan: Scan,
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
) -> tuple[Tensor, Tensor]:
    """y [B, D, L] in the format of `u`, and last_state [B, D, N].

    u, delta, z [B, D, L]; A [D, N]; B, C [B, N, L], [B, G, N, L] or [D, N]; D and
    delta_bias [D]; initial_state [B, D, N]. The recurrence runs over [B, L, D, N].
    """
    batch, channels, _ = u.shape
    x = tokens_first(widened(u))
    step = tokens_first(widened(delta))
    if delta_bias is not None:
        step = step + delta_bias
    if delta_softplus:
        step = softplus(step, threshold=SOFTPLUS_THRESHOLD)
    decay = torch.exp(step[..., None] * A)
    drive = (step * x)[..., None] * expanded_keys(widened(B), channels)
    if initial_state is None:
        initial_state = x.new_zeros(batch, channels, A.shape[1])
    h, last_state = scan(decay, drive, initial_state)
    y = (h * expanded_keys(widened(C), channels)).sum(-1)
    if D is not None:
        y = y + D * x
    if z is not None:
        y = y * silu(tokens_first(widened(z)))
    return tokens_first(y).to(u.dtype), last_state


def widened(x: Tensor) -> Tensor:
    """The tensor in the format of computation: fp64 stays, all else becomes fp32."""
    return x if x.dtype == torch.float64 else x.to(torch.float32)


def tokens_first(x: Tensor) -> Tensor:
    """[B, D, L] as [B, L, D], and back."""
    return x.transpose(1, 2)


def expanded_keys(keys: Tensor, channels: int) -> Tensor:
    """B or C so that it broadcasts with [B, L, D, N]."""
    match keys.ndim:
        case 2:
            return keys
        case 3:
            return tokens_first(keys)[:, :, None]
        case _:
            per_channel = keys.repeat_interleave(channels // keys.shape[1], dim=1)
            return per_channel.permute(0, 3, 1, 2)
