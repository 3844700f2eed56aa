"""FlashScan: a first-order scan in Triton that keeps its state on chip, in one pass.

A program has one batch row and a block of channels, and goes over time a tile of tokens
at a time: it loads the tile, scans it by `tl.associative_scan`, and adds the state that
was carried in registers, decayed by the tile's running product. The backward pass is
the same from the last token to the first, for g_t = hbar_t + a_{t+1} g_{t+1}.

Importing this module imports Triton, and what is decorated is compiled or interpreted
as Triton is set to at that time.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64  # tokens
CHANNELS = 32  # of a program, at most


@triton.jit
def _combine(a_left, h_left, a_right, h_right):  # type: ignore[no-untyped-def]
    return a_left * a_right, a_right * h_left + h_right


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    a,
    b,
    initial,
    h,
    final,
    steps,
    channels,
    TILE: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """h_t = a_t h_{t-1} + b_t, tile by tile."""
    batch = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = d < channels
    carry = tl.load(initial + batch * channels + d, mask=inside, other=0.0)
    rows = tl.arange(0, TILE)
    for start in range(0, steps, TILE):
        t = start + rows
        mask = (t < steps)[:, None] & inside[None, :]
        place = (batch * steps + t[:, None]) * channels + d[None, :]
        # Tokens past the end leave the state as it is.
        decay = tl.load(a + place, mask=mask, other=1.0).to(tl.float32)
        drive = tl.load(b + place, mask=mask, other=0.0).to(tl.float32)
        product, local = tl.associative_scan((decay, drive), 0, _combine)
        state = product * carry[None, :] + local
        tl.store(h + place, state.to(h.dtype.element_ty), mask=mask)
        carry = tl.sum(tl.where((rows == TILE - 1)[:, None], state, 0.0), 0)
    tl.store(final + batch * channels + d, carry, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    a,
    states,
    initial,
    h_bar,
    final_bar,
    a_bar,
    b_bar,
    initial_bar,
    steps,
    channels,
    TILE: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """b_bar = g and a_bar_t = g_t h_{t-1}, tile by tile from the last token on."""
    batch = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = d < channels
    row = batch * channels + d
    carry = tl.load(final_bar + row, mask=inside, other=0.0)
    before = tl.load(initial + row, mask=inside, other=0.0)
    rows = tl.arange(0, TILE)
    for start in range(0, steps, TILE):
        t = steps - 1 - start - rows
        mask = (t >= 0)[:, None] & inside[None, :]
        place = (batch * steps + t[:, None]) * channels + d[None, :]
        # The last token has nothing after it but the final state.
        later = mask & (t + 1 < steps)[:, None]
        decay = tl.load(a + place + channels, mask=later, other=1.0).to(tl.float32)
        bar = tl.load(h_bar + place, mask=mask, other=0.0).to(tl.float32)
        product, local = tl.associative_scan((decay, bar), 0, _combine)
        g = product * carry[None, :] + local
        earlier = mask & (t > 0)[:, None]
        state = tl.load(states + place - channels, mask=earlier, other=0.0)
        state = tl.where((t == 0)[:, None], before[None, :], state)
        tl.store(a_bar + place, (g * state).to(a_bar.dtype.element_ty), mask=mask)
        tl.store(b_bar + place, g.to(b_bar.dtype.element_ty), mask=mask)
        carry = tl.sum(tl.where((rows == TILE - 1)[:, None], g, 0.0), 0)
    first = batch * steps * channels + d
    decay = tl.load(a + first, mask=inside & (steps > 0), other=1.0).to(tl.float32)
    tl.store(initial_bar + row, decay * carry, mask=inside)


def _launch(kernel: Any, *arguments: Any, like: Tensor) -> None:
    batch, steps, channels = like.shape
    block = min(CHANNELS, triton.next_power_of_2(max(1, channels)))
    if batch and channels:
        grid = batch, triton.cdiv(channels, block)
        kernel[grid](*arguments, steps, channels, TILE=TILE, CHANNELS=block)


def _scan(
    a: Tensor, b: Tensor, initial: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    h = torch.empty_like(b, dtype=dtype)
    final = torch.empty_like(initial)
    _launch(_forward, a, b, initial, h, final, like=b)
    return h, final


class FlashScan(torch.autograd.Function):
    """The scan with its backward; states are computed anew for that, in fp32."""

    @staticmethod
    def forward(
        context: Any, a: Tensor, b: Tensor, initial: Tensor
    ) -> tuple[Tensor, Tensor]:
        """h [B, T, D] in the dtype of b and the final state [B, D] in fp32."""
        context.save_for_backward(a, b, initial)
        return _scan(a, b, initial, b.dtype)

    @staticmethod
    def backward(
        context: Any, h_bar: Tensor, final_bar: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of a, b and the initial state."""
        a, b, initial = context.saved_tensors
        states, _ = _scan(a, b, initial, torch.float32)
        bars = torch.empty_like(a), torch.empty_like(b), torch.empty_like(initial)
        inputs = a, states, initial, h_bar.contiguous(), final_bar.contiguous()
        _launch(_backward, *inputs, *bars, like=b)
        return bars


def flash_scan(
    a: Tensor, b: Tensor, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """h [B, T, D] and the final state [B, D] of h_t = a_t h_{t-1} + b_t."""
    if initial_state is None:
        batch, _, channels = b.shape
        initial_state = b.new_zeros(batch, channels, dtype=torch.float32)
    tensors = (x.contiguous() for x in (a, b, initial_state))
    h, final = FlashScan.apply(*tensors)  # type: ignore[no-untyped-call]
    return h, final
