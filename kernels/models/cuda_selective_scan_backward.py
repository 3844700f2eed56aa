"""The backward pass of the CUDA selective_scan on the CPU, operation by operation.

As the kernels of kernels/cuda/sources/selective_scan_backward_*.cuh have it with the
functions `Reproducible` or `Tabulated`, in one slice. Between the states that the
forward pass keeps they are made again by plain fused multiply-adds, whatever its
recurrence. The order of sums is that of one of two kernels:

    steps  8 states a part. Of parts, of the channels of a warp and of 32 steps:
           neighbours, then neighbouring pairs, and so on; warps and blocks in order.
    rows   4 states a part, four parts as (0 + 2) + (1 + 3). Of the 16 channels of a
           warp c and c + 8 by a fused multiply-add, then these eight in order; warps
           and blocks in order. Of steps, those of one part of four in order, backwards.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scancheck.kernels.models import cuda_ex2
from scancheck.kernels.models.cuda_arithmetic import fma
from scancheck.kernels.models.cuda_functions import LOG2_E
from scancheck.kernels.models.cuda_selective_scan_adjoint import (
    adjoint,
    gate,
    over_channels,
    step_size,
    tree,
)
from scancheck.kernels.models.jit import jit

FloatArray = NDArray[np.float32]

_ZERO = np.float32(0.0)
_LN_2 = np.float32(float.fromhex("0x1.62e430p-1"))
_LARGEST = np.float32(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Of the sums of one kernel."""

    rows: bool  # or steps
    edge_steps: int
    lanes: int  # of one channel; each has a part of its states
    warps: int  # of a block

    @property
    def channels(self) -> int:
        """Of a warp."""
        return 16 if self.rows else 32 // self.lanes

    @property
    def width(self) -> int:
        """N with the padding."""
        return 16 if self.rows else 8 * self.lanes


@jit()
def _group(
    u: Any,
    delta: Any,
    z: Any,
    y_bar: Any,
    scaled: Any,
    b: Any,
    c: Any,
    skip: Any,
    bias: Any,
    edges: Any,
    gated: Any,
    skips: Any,
    curved: Any,
    rows: Any,
    edge_steps: Any,
    channels: Any,
    warps: Any,
    parts: Any,
    table: Any,
    bars: Any,
    carried: Any,
    state_sums: Any,
    channel_sums: Any,
    key_sums: Any,
) -> Any:
    """The channels of one batch row and group.

    u, delta, z, y_bar [D, L]; without z or D zeros; scaled [D, N]; b, c [L or 1, N] or
    [D, 1, N]; edges [D, edges, N]. Fills bars [3, D, L]: of u, delta and z; carried
    [D, N]; state_sums [3, D, N]: of A and of B and C over the steps; channel_sums
    [2, D]: of D and the bias; key_sums [2, L, N].
    """
    count, length = u.shape
    width = scaled.shape[1]
    part_sums = np.empty(parts, np.float32)
    lanes = np.zeros((2, count, 32), np.float32)
    step = np.empty((count, 3, edge_steps), np.float32)
    states = np.empty((count, edge_steps, width), np.float32)
    cotangents = np.empty((count, edge_steps, width), np.float32)
    sums = np.empty((3, edge_steps), np.float32)
    keys = np.empty((2, edge_steps, width), np.float32)
    gates = np.empty((2, edge_steps), np.float32)
    slopes = np.empty(edge_steps, np.float32)
    for edge in range(edges.shape[1] - 1, -1, -1):
        first = edge * edge_steps
        size = min(edge_steps, length - first)
        for d in range(count):
            for t in range(size):
                at = first + t
                size_of_step, slopes[t] = step_size(
                    delta[d, at] + bias[d], curved, table
                )
                gates[0, t] = gates[1, t] = y_bar[d, at]
                if gated:
                    value, slope = gate(z[d, at], table)
                    gates[0, t] = y_bar[d, at] * value
                    gates[1, t] = y_bar[d, at] * slope
                step[d, 0, t] = size_of_step
                step[d, 1, t] = size_of_step * u[d, at]
                step[d, 2, t] = gates[0, t]
                for n in range(width):
                    keys[0, t, n] = b[d % b.shape[0], at % b.shape[1], n]
                    keys[1, t, n] = c[d % c.shape[0], at % c.shape[1], n]
            adjoint(
                edges[d, edge],
                step[d],
                scaled[d],
                keys[0, :size],
                keys[1, :size],
                rows,
                carried[d],
                state_sums[0, d],
                state_sums[1, d],
                state_sums[2, d],
                states[d],
                cotangents[d],
                sums,
                part_sums,
                table,
            )
            if not rows:
                lanes[:, d] = _ZERO
            for t in range(size - 1, -1, -1):
                at = first + t
                output, of_written = sums[2, t], sums[0, t]
                if skips:
                    output = fma(skip[d], u[d, at], output)
                bars[2, d, at] = gates[1, t] * output
                u_bar = of_written * step[d, 0, t]
                if rows or skips:
                    u_bar = fma(skip[d], gates[0, t], u_bar)
                bars[0, d, at] = u_bar
                delta_bar = fma(of_written, u[d, at], sums[1, t] * _LN_2)
                if curved:
                    delta_bar = delta_bar * slopes[t]
                bars[1, d, at] = delta_bar
                if rows:
                    lane = t % 4
                    lanes[0, d, lane] = fma(gates[0, t], u[d, at], lanes[0, d, lane])
                    lanes[1, d, lane] = lanes[1, d, lane] + delta_bar
                else:
                    lanes[0, d, t] = gates[0, t] * u[d, at]
                    lanes[1, d, t] = delta_bar
            if not rows:
                for i in range(2):
                    channel_sums[i, d] = channel_sums[i, d] + tree(lanes[i, d], 32)
        for i in range(2):
            over_channels(
                step[:, 1 + i, :size],
                (cotangents if i == 0 else states)[:, :size],
                rows,
                channels,
                warps,
                key_sums[i, first : first + size],
            )
    if rows:
        for i in range(2):
            for d in range(count):
                x = lanes[i, d]
                channel_sums[i, d] = (x[0] + x[2]) + (x[1] + x[3])


def backward(
    order: Order,
    edges: torch.Tensor,
    tensors: dict[str, torch.Tensor],
    delta_softplus: bool,
    y_bar: torch.Tensor,
    last_bar: torch.Tensor | None = None,
    *,
    tabulated: bool = False,
) -> dict[str, torch.Tensor]:
    """The gradient of each tensor, by its name, and of initial_state.

    `edges` [B, ceil(L / E), D, N] are the states before each order.edge_steps steps;
    `tabulated` takes the hardware's exponential by its table.
    """
    u, A = tensors["u"], tensors["A"]
    batch, channels, length = u.shape
    states = A.shape[1]
    groups = max(x.shape[1] if x.ndim == 4 else 1 for x in (tensors["B"], tensors["C"]))
    in_group = channels // groups
    x = {
        name: _fp32(tensors[name]) if name in tensors else np.zeros(shape, np.float32)
        for name, shape in (
            *((name, u.shape) for name in ("u", "delta", "z")),
            *((name, (channels,)) for name in ("D", "delta_bias")),
        )
    }
    scaled = _padded(np.clip(_fp32(A) * LOG2_E, -_LARGEST, _LARGEST), order.width)
    keys = [_keys(tensors[name], batch, groups, order.width) for name in ("B", "C")]
    kept = _padded(_fp32(edges).transpose(0, 2, 1, 3), order.width)
    cotangent = _fp32(y_bar)

    bars = np.zeros((3, batch, channels, length), np.float32)
    carried = np.zeros((batch, channels, order.width), np.float32)
    if last_bar is not None:
        carried[..., :states] = _fp32(last_bar)
    state_sums = np.zeros((3, batch, channels, order.width), np.float32)
    channel_sums = np.zeros((2, batch, channels), np.float32)
    key_sums = np.zeros((2, batch, groups, length, order.width), np.float32)
    for row in range(batch):
        for group in range(groups):
            own = slice(group * in_group, (group + 1) * in_group)
            b, c = (k[row, group] if k.ndim == 5 else k[own] for k in keys)
            _group(
                x["u"][row, own],
                x["delta"][row, own],
                x["z"][row, own],
                cotangent[row, own],
                scaled[own],
                b,
                c,
                x["D"][own],
                x["delta_bias"][own],
                kept[row, own],
                "z" in tensors,
                "D" in tensors,
                delta_softplus,
                order.rows,
                order.edge_steps,
                order.channels,
                order.warps,
                4 if order.rows else order.lanes,
                cuda_ex2.table() if tabulated else None,
                bars[:, row, own],
                carried[row, own],
                state_sums[:, row, own],
                channel_sums[:, row, own],
                key_sums[:, row, group],
            )
    found = {"u": bars[0], "delta": bars[1], "z": bars[2]}
    found["A"] = _in_order(state_sums[0])[:, :states]
    found["D"], found["delta_bias"] = map(_in_order, channel_sums)
    for i, name in enumerate(("B", "C")):
        if tensors[name].ndim == 2:
            found[name] = _in_order(state_sums[1 + i])[:, :states]
        else:
            by_state = key_sums[i, ..., :states].swapaxes(-1, -2)
            found[name] = by_state.reshape(tensors[name].shape)
    gradients = {
        name: torch.from_numpy(found[name].copy()).to(tensors[name].dtype)
        for name in found
        if name in tensors
    }
    gradients["initial_state"] = torch.from_numpy(carried[..., :states].copy())
    return gradients


def _in_order(x: FloatArray) -> FloatArray:
    """The sum of the rows, one after another from zero."""
    total: FloatArray = np.zeros_like(x[0])
    for row in x:
        total = total + row
    return total


def _keys(x: torch.Tensor, batch: int, groups: int, width: int) -> FloatArray:
    """B or C as [batch, groups, 1, L, N], or constant as [D, 1, N]."""
    if x.ndim == 2:
        return _padded(_fp32(x), width)[:, None]
    keys = _fp32(x).reshape(batch, groups, 1, *x.shape[-2:]).swapaxes(-1, -2)
    return _padded(keys, width)


def _padded(x: FloatArray, width: int) -> FloatArray:
    """Zeros behind the last axis up to `width`."""
    padded = np.zeros((*x.shape[:-1], width), np.float32)
    padded[..., : x.shape[-1]] = x
    return padded


def _fp32(x: torch.Tensor) -> FloatArray:
    array: FloatArray = x.detach().float().cpu().contiguous().numpy()
    return array
