"""linear_scan on the CPU, operation by operation as the CUDA kernels compute it.

In fp32 with fused multiply-adds, whatever the storage. A chunk is `rows` rows of
`steps` steps:

    row map      the steps of a row combined one after another
    before[r]    the row maps before row r combined one after another; none for row 0
    S_out        all row maps of the chunk applied to S_in, the state before the chunk
    S_t          before[r] applied to S_in, then step after step through row r

with the combinations of kernels/cuda/sources/affine.cuh. The adjoint G_t = a_{t+1}
G_{t+1} + hbar_t takes the same rows and chunks from the last to the first.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable

from scancheck.kernels.models.cuda_functions import exp, fma, on_array
from scancheck.kernels.models.jit import jit

FloatArray = NDArray[np.float32]

PLAIN, KAHAN, FULL, LOG = range(4)
VARIANTS = {"plain": PLAIN, "kahan": KAHAN, "full": FULL, "segsum": LOG}
"""`fast` has no model: its exponential is the hardware's."""

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@jit()
def two_sum(x, y):
    """x + y rounded, and its exact error (Knuth)."""
    total = x + y
    y_seen = total - x
    x_seen = total - y_seen
    return total, (x - x_seen) + (y - y_seen)


@jit()
def applied(variant, rests, step, x, low):
    """The state (x, low) after a map (decay, drive, decay rest, drive rest).

    `rests` says whether the map's rests count.
    """
    decay, drive, decay_rest, drive_rest = step
    if variant == LOG:
        return fma(exp(decay), x, drive), _ZERO
    if variant == PLAIN:
        return fma(decay, x, drive), _ZERO
    product = decay * x
    total, error = two_sum(product, drive)
    if variant == FULL:
        error = fma(decay, x, -product) + error
    low = fma(decay, low, error)
    if rests:
        if variant == FULL:
            low = fma(decay_rest, x, low)
        low = low + drive_rest
    return total, low


@jit()
def combined(variant, rests, left, right):
    """The map `left`, then `right`, whose rests count or not."""
    drive, drive_rest = applied(variant, rests, right, left[1], left[3])
    if variant == LOG:
        return right[0] + left[0], drive, _ZERO, _ZERO
    decay = right[0] * left[0]
    decay_rest = _ZERO
    if variant == FULL:
        decay_rest = fma(right[0], left[0], -decay)
        decay_rest = fma(right[0], left[2], decay_rest)
        if rests:
            decay_rest = fma(right[2], left[0], decay_rest)
    return decay, drive, decay_rest, drive_rest


@jit()
def rounded(variant, x, low):
    """The state as one number; an infinity stays whatever its rest is."""
    if variant in (KAHAN, FULL) and np.isfinite(x):
        return x + low
    return x


@jit()
def chain(variant, rows, steps, decay, drive, start, after, before):
    """The states before and after each step, [N, T], and after the last one, [N].

    decay, drive [N, T], float32: decays are logarithms for LOG. `start` [N] is the
    state before the first step. `after` and `before` are written.
    """
    lanes, length = drive.shape
    chunk = rows * steps
    last = start.copy()
    for n in range(lanes):
        value, low = start[n], _ZERO
        for first_of_chunk in range(0, length, chunk):
            end = min(first_of_chunk + chunk, length)
            sofar = (_ONE, _ZERO, _ZERO, _ZERO)
            for first in range(first_of_chunk, end, steps):
                x, x_low = value, low
                if first > first_of_chunk:
                    x, x_low = applied(variant, True, sofar, value, low)
                row = (decay[n, first], drive[n, first], _ZERO, _ZERO)
                for t in range(first, min(first + steps, end)):
                    step = (decay[n, t], drive[n, t], _ZERO, _ZERO)
                    before[n, t] = rounded(variant, x, x_low)
                    x, x_low = applied(variant, False, step, x, x_low)
                    after[n, t] = rounded(variant, x, x_low)
                    if t > first:
                        row = combined(variant, False, row, step)
                begins = first == first_of_chunk
                sofar = row if begins else combined(variant, True, sofar, row)
            value, low = applied(variant, True, sofar, value, low)
            last[n] = after[n, end - 1]
    return last


@jit()
def adjoint_chain(variant, rows, steps, decay_after, drive, start, after):
    """Writes G_t [N, T] to `after`, from the cotangent of the final state [N].

    decay_after is the decay of the step after each one, that of the identity at the
    end; drive the cotangents of the states.
    """
    lanes, length = drive.shape
    chunk = rows * steps
    for n in range(lanes):
        value, low = start[n], _ZERO
        for k in range((length - 1) // chunk, -1, -1):
            end = min((k + 1) * chunk, length)
            last_row = (end - 1 - k * chunk) // steps
            sofar = (_ONE, _ZERO, _ZERO, _ZERO)
            for r in range(last_row, -1, -1):
                first = k * chunk + r * steps
                last = min(first + steps, end) - 1
                x, x_low = value, low
                if r < last_row:
                    x, x_low = applied(variant, True, sofar, value, low)
                row = (decay_after[n, last], drive[n, last], _ZERO, _ZERO)
                for t in range(last, first - 1, -1):
                    step = (decay_after[n, t], drive[n, t], _ZERO, _ZERO)
                    x, x_low = applied(variant, False, step, x, x_low)
                    after[n, t] = rounded(variant, x, x_low)
                    if t < last:
                        row = combined(variant, False, row, step)
                begins = r == last_row
                sofar = row if begins else combined(variant, True, sofar, row)
            value, low = applied(variant, True, sofar, value, low)


def linear_scan(
    variant: str,
    rows: int,
    steps: int,
    a: torch.Tensor | None,
    g: torch.Tensor | None,
    b: torch.Tensor,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """h [B, T, D] in the dtype of b and the final state [B, D] in fp32, differentiable.

    One of a and g = log a is given.
    """
    gate = g if a is None else a
    run: Any = _LinearScan.apply
    h, final = run((VARIANTS[variant], rows, steps), a is None, gate, b, initial_state)
    return h, final


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        order: tuple[int, int, int],
        logs: bool,
        gate: torch.Tensor,
        b: torch.Tensor,
        initial_state: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start = torch.zeros(b.shape[0], b.shape[2])
        if initial_state is not None:
            start = initial_state.detach().clone()
        after = np.empty(_lanes(b).shape, np.float32)
        before = np.empty_like(after)
        held, decay = _decays(order[0], logs, gate)
        last = chain(*order, held, _lanes(b), start.flatten().numpy(), after, before)
        ctx.order, ctx.logs, ctx.decays = order, logs, (held, decay)
        ctx.before = before
        ctx.save_for_backward(gate, b, initial_state)
        return _tokens(after, b), torch.from_numpy(last).reshape_as(start)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, hbar: torch.Tensor, final_bar: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        gate, b, initial_state = ctx.saved_tensors
        held, decay = ctx.decays
        identity = _ZERO if ctx.order[0] == LOG else _ONE
        decay_after = np.full_like(held, identity)
        decay_after[:, :-1] = held[:, 1:]
        adjoint = np.empty_like(held)
        start = final_bar.flatten().numpy()
        variant, rows, steps = ctx.order
        drive = _lanes(hbar)
        adjoint_chain(variant, rows, steps, decay_after, drive, start, adjoint)
        with np.errstate(all="ignore"):
            gate_bar = adjoint * ctx.before
            if ctx.logs:
                gate_bar = decay * gate_bar
            initial_bar = None
            if initial_state is not None:
                bar = decay[:, 0] * adjoint[:, 0] if b.shape[1] else start
                initial_bar = torch.from_numpy(bar).reshape_as(initial_state)
        return None, None, _tokens(gate_bar, gate), _tokens(adjoint, b), initial_bar


def _decays(
    variant: int, logs: bool, gate: torch.Tensor
) -> tuple[FloatArray, FloatArray]:
    """What maps hold, decays or their logarithms, and the decays, [N, T]."""
    given = _lanes(gate)
    if not logs:
        return given, given
    decay = on_array("exp", given)
    return given if variant == LOG else decay, decay


def _lanes(x: torch.Tensor) -> FloatArray:
    """[B, T, D] -> [B D, T] in fp32, exactly."""
    lanes: FloatArray = x.detach().float().mT.contiguous().flatten(0, 1).numpy()
    return lanes


def _tokens(lanes: FloatArray, like: torch.Tensor) -> torch.Tensor:
    """[B D, T] -> [B, T, D] in the dtype of `like`."""
    B, T, D = like.shape
    return torch.from_numpy(lanes).reshape(B, D, T).mT.to(like.dtype).contiguous()
