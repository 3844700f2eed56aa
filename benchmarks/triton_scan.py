"""selective_scan as one writes it in Triton: a loop over time, states in registers.

A program has CHANNELS channels of one batch row. N is a power of two.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

CHANNELS, WARPS = 16, 1


@triton.jit
def _scan(
    u,
    delta,
    A,
    B,
    C,
    D,
    z,
    delta_bias,
    y,
    steps,
    channels,
    N: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    batch = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, N)
    inside = d < channels
    rates = tl.load(A + d[:, None] * N + n[None, :], mask=inside[:, None], other=0.0)
    skip = tl.load(D + d, mask=inside, other=0.0)
    bias = tl.load(delta_bias + d, mask=inside, other=0.0)
    row = (batch * channels + d) * steps
    key = (batch * N + n) * steps
    h = tl.zeros((CHANNELS, N), dtype=tl.float32)
    for t in range(0, steps):
        x = tl.load(u + row + t, mask=inside, other=0.0).to(tl.float32)
        dt = tl.load(delta + row + t, mask=inside, other=0.0).to(tl.float32) + bias
        dt = tl.where(dt > 20.0, dt, tl.log(1.0 + tl.exp(dt)))
        b = tl.load(B + key + t).to(tl.float32)
        c = tl.load(C + key + t).to(tl.float32)
        h = tl.exp(dt[:, None] * rates) * h + (dt * x)[:, None] * b[None, :]
        out = tl.sum(h * c[None, :], axis=1) + skip * x
        gate = tl.load(z + row + t, mask=inside, other=0.0).to(tl.float32)
        out = out * gate / (1.0 + tl.exp(-gate))
        tl.store(y + row + t, out.to(y.dtype.element_ty), mask=inside)


def selective_scan(
    *,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    z: Tensor,
    delta_bias: Tensor,
) -> Tensor:
    """y [B, D, L] of contiguous tensors, softplus on."""
    batch, channels, steps = u.shape
    y = torch.empty_like(u)
    grid = batch, triton.cdiv(channels, CHANNELS)
    _scan[grid](
        *(u, delta, A, B, C, D, z, delta_bias, y, steps, channels),
        N=A.shape[1],
        CHANNELS=CHANNELS,
        num_warps=WARPS,
    )
    return y
