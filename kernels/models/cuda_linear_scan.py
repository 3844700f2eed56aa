"""linear_scan on the CPU, operation by operation as the CUDA kernels compute it.

In fp32 with fused multiply-adds, whatever the storage. A chunk is `rows` rows of
`steps` steps:

    row map      the steps of a row combined one after another
    before[r]    the row maps before row r combined one after another; none for row 0
    S_out        all row maps of the chunk applied to S_in, the state before the chunk;
                 or a tree of chunks, combined in the same way
    S_t          before[r] applied to S_in, then step after step through row r

with the combinations of kernels/cuda/sources/affine.cuh. The adjoint G_t = a_{t+1}
G_{t+1} + hbar_t takes the same rows and chunks from the last to the first. What goes
from chunk to chunk, S_out and the adjoint, is rounded to the format of the state.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable

from scancheck.formats import Format, format_named
from scancheck.kernels.models.cuda_arithmetic import numbers_of, stored
from scancheck.kernels.models.cuda_functions import exp, fma, on_array
from scancheck.kernels.models.jit import jit

FloatArray = NDArray[np.float32]

PLAIN, KAHAN, FULL, LOG = range(4)
VARIANTS = {"plain": PLAIN, "kahan": KAHAN, "full": FULL, "segsum": LOG}
"""`fast` has no model: its exponential is the hardware's."""

_GIVEN, _STEPWISE = -1, -2
"""In place of a number of groups: all states before chunks are given, or each is what
the last step of the chunk before left."""
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
def accumulated(variant, maps, count, doubling):
    """maps[r] becomes the combination of maps[0] .. maps[r], r < count; [rows, 4].

    One after another, or by doubling (Hillis and Steele).
    """
    if not doubling:
        for r in range(1, count):
            total = combined(variant, True, _map(maps[r - 1]), _map(maps[r]))
            maps[r] = np.array(total)
        return
    reach = 1
    while reach < count:
        earlier = maps.copy()
        for r in range(reach, count):
            left, right = _map(earlier[r - reach]), _map(earlier[r])
            maps[r] = np.array(combined(variant, True, left, right))
        reach *= 2


@jit()
def _map(row):
    return row[0], row[1], row[2], row[3]


@jit()
def row_maps(variant, steps, decay, drive, maps):
    """Fills maps[r] with the combination of the steps of row r, in order."""
    for r in range(len(maps)):
        first = r * steps
        row = (decay[first], drive[first], _ZERO, _ZERO)
        for t in range(first + 1, min(first + steps, len(drive))):
            step = (decay[t], drive[t], _ZERO, _ZERO)
            row = combined(variant, False, row, step)
        maps[r] = np.array(row)


@jit()
def carried(variant, totals, edges, groups, state):
    """edges[k + 1] from edges[k] by totals[k]; [chunks, 2] from [chunks - 1, 4].

    In order, or where `groups` is not 0 by a tree: as many groups of consecutive totals
    are combined by doubling.
    """
    count = len(totals)
    each = -(-count // groups) if groups else count
    used = -(-count // each) if count else 0
    sofar = np.empty((used, 4), np.float32)
    for group in range(used):
        whole = _map(totals[group * each])
        for k in range(group * each + 1, min((group + 1) * each, count)):
            whole = combined(variant, True, whole, _map(totals[k]))
        sofar[group] = np.array(whole)
    if groups:
        accumulated(variant, sofar, used, True)
    for group in range(used):
        x, low = edges[0]
        if group > 0:
            x, low = applied(variant, True, _map(sofar[group - 1]), x, low)
        for k in range(group * each, min((group + 1) * each, count)):
            x, low = applied(variant, True, _map(totals[k]), x, low)
            x = stored(x, state)
            edges[k + 1, 0], edges[k + 1, 1] = x, low


@jit()
def stepped(variant, steps, decay, drive, sofar, edge, before, after):
    """Fills in the states before and after each step of a chunk; returns the last one.

    From the state before it, with its rest, as is the one that is returned.
    """
    x, low = edge[0], edge[1]
    for r in range(len(sofar)):
        x, low = edge[0], edge[1]
        if r > 0:
            x, low = applied(variant, True, _map(sofar[r - 1]), x, low)
        for t in range(r * steps, min((r + 1) * steps, len(drive))):
            before[t] = rounded(variant, x, low)
            step = (decay[t], drive[t], _ZERO, _ZERO)
            x, low = applied(variant, False, step, x, low)
            after[t] = rounded(variant, x, low)
    return x, low


@jit()
def chain(
    variant, rows, steps, doubling, groups, state, decay, drive, edges, before, after
):
    """The states before and after each step, [N, T], and those before chunks.

    decay, drive [N, T], float32: decays are logarithms for LOG. edges [N, chunks, 2]
    has the state before the first step; the others are filled in, unless `groups` is
    _GIVEN.
    """
    lanes, length = drive.shape
    chunk = rows * steps
    chunks = -(-length // chunk)
    maps = np.empty((chunks, rows, 4), np.float32)
    totals = np.empty((max(chunks - 1, 0), 4), np.float32)
    for n in range(lanes):
        for k in range(chunks):
            part = slice(k * chunk, min((k + 1) * chunk, length))
            used = -(-(part.stop - part.start) // steps)
            row_maps(variant, steps, decay[n, part], drive[n, part], maps[k, :used])
            accumulated(variant, maps[k], used, doubling)
            if k + 1 < chunks:
                totals[k] = maps[k, rows - 1]
        if groups >= 0:
            carried(variant, totals, edges[n], groups, state)
        for k in range(chunks):
            part = slice(k * chunk, min((k + 1) * chunk, length))
            used = -(-(part.stop - part.start) // steps)
            x, low = stepped(
                variant,
                steps,
                decay[n, part],
                drive[n, part],
                maps[k, :used],
                edges[n, k],
                before[n, part],
                after[n, part],
            )
            if groups == _STEPWISE and k + 1 < chunks:
                edges[n, k + 1, 0], edges[n, k + 1, 1] = x, low


@jit()
def adjoint_chain(variant, rows, steps, state, decay_after, drive, start, after):
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
            value = stored(value, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How a pass over the data is cut, and in which order it is combined."""

    rows: int  # per chunk
    steps: int  # per row
    doubling: bool = False  # rows are combined by doubling, else in order
    groups: int = 0  # of chunks combined by doubling; 0: chunk after chunk


ORDERS = {
    "single_pass": Order(rows=16, steps=16),
    "single_pass_warps": Order(rows=16, steps=16, doubling=True),
    "single_pass_shared": Order(rows=16, steps=16, doubling=True),
    "two_pass": Order(rows=16, steps=16),
    "two_pass_carry_tree": Order(rows=16, steps=16, groups=32),
    "sequential": Order(rows=1, steps=256, groups=_STEPWISE),
}
BACKWARD_ORDER = Order(rows=32, steps=8)


def single_pass(chunk: int) -> tuple[Order, Order]:
    """Both orders of the single pass in chunks of so many steps."""
    return Order(rows=chunk // 16, steps=16), Order(rows=chunk // 8, steps=8)


def linear_scan(
    variant: str,
    order: Order,
    backward_order: Order,
    a: torch.Tensor | None,
    g: torch.Tensor | None,
    b: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    *,
    state: str = "fp32",
) -> tuple[torch.Tensor, torch.Tensor]:
    """h [B, T, D] in the dtype of b and the final state [B, D] in fp32, differentiable.

    One of a and g = log a is given. Both orders have the same steps per chunk. `state`
    names the format of states and adjoints that go from chunk to chunk.
    """
    gate = g if a is None else a
    run: Any = _LinearScan.apply
    how = VARIANTS[variant], order, backward_order, a is None, format_named(state)
    h, final = run(how, gate, b, initial_state)
    return h, final


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        how: tuple[int, Order, Order, bool, Format],
        gate: torch.Tensor,
        b: torch.Tensor,
        initial_state: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        variant, order, _, logs, state = how
        start = torch.zeros(b.shape[0], b.shape[2])
        if initial_state is not None:
            start = initial_state.detach().clone()
        drive = _lanes(b)
        chunks = -(-b.shape[1] // (order.rows * order.steps))
        ctx.edges = np.zeros((len(drive), chunks, 2), np.float32)
        ctx.edges[:, :1, 0] = start.reshape(-1, 1).numpy()
        ctx.decays = _decays(variant, logs, gate)
        _, after = _states(
            variant, order, order.groups, state, ctx.decays[0], drive, ctx.edges
        )
        ctx.how = how
        ctx.save_for_backward(gate, b, initial_state)
        final = torch.from_numpy(after[:, -1:].copy()) if b.shape[1] else start
        return _tokens(after, b), final.reshape_as(start)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, hbar: torch.Tensor, final_bar: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        gate, b, initial_state = ctx.saved_tensors
        variant, _, order, logs, state = ctx.how
        held, decay = ctx.decays
        before, _ = _states(variant, order, _GIVEN, state, held, _lanes(b), ctx.edges)
        decay_after = np.full_like(held, _ZERO if variant == LOG else _ONE)
        decay_after[:, :-1] = held[:, 1:]
        adjoint = np.empty_like(held)
        start = final_bar.flatten().numpy()
        drive = _lanes(hbar)
        cut, kept = (order.rows, order.steps), numbers_of(state)
        adjoint_chain(variant, *cut, kept, decay_after, drive, start, adjoint)
        with np.errstate(all="ignore"):
            gate_bar = adjoint * before
            if logs:
                gate_bar = decay * gate_bar
            initial_bar = None
            if initial_state is not None:
                bar = decay[:, 0] * adjoint[:, 0] if b.shape[1] else start
                initial_bar = torch.from_numpy(bar).reshape_as(initial_state)
        return None, _tokens(gate_bar, gate), _tokens(adjoint, b), initial_bar


def _states(
    variant: int,
    order: Order,
    groups: int,
    state: Format,
    held: FloatArray,
    drive: FloatArray,
    edges: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """The states before and after each step, [N, T]; fills in edges."""
    before, after = np.empty_like(drive), np.empty_like(drive)
    how = order.rows, order.steps, order.doubling, groups, numbers_of(state)
    chain(variant, *how, held, drive, edges, before, after)
    return before, after


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
