"""The backward pass of the CUDA selective_scan on the CPU, operation by operation.

As the kernels of kernels/cuda/sources/selective_scan_backward_*.cuh have it with the
functions `Reproducible`, in one slice. Between the states that the forward pass keeps
they are made again by plain fused multiply-adds, whatever its recurrence. The order of
sums is that of one of two kernels:

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

from scancheck.kernels.models.cuda_arithmetic import (
    fma,
    inlined,
    max_or_nan,
    min_or_nan,
)
from scancheck.kernels.models.cuda_functions import (
    LOG2_E,
    SILU_LOWEST,
    exp,
    exp2_product,
    log1p_unit,
    sigmoid_of,
)
from scancheck.kernels.models.jit import jit

FloatArray = NDArray[np.float32]

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_LN_2 = np.float32(float.fromhex("0x1.62e430p-1"))
_SILU_HIGHEST = -SILU_LOWEST
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


@inlined
def _step_size(x, curved):
    """d and its slope by delta + bias."""
    e = exp(-abs(x))
    small = sigmoid_of(_ONE, e)
    softplus = max_or_nan(x, _ZERO) + log1p_unit(e)
    slope = e * small if x < _ZERO else small
    return (softplus, slope) if curved else (x, _ONE)


@inlined
def _gate(z):
    """silu(z) and its slope."""
    e = exp(-abs(z))
    small = sigmoid_of(_ONE, e)
    other = e * small
    of_z = other if z < _ZERO else small
    of_minus_z = small if z < _ZERO else other
    low = max_or_nan(z, SILU_LOWEST)
    return low * of_z, of_z * fma(min_or_nan(low, _SILU_HIGHEST), of_minus_z, _ONE)


@jit()
def _tree(values: Any, count: Any) -> Any:
    """Neighbours, then neighbouring pairs, and so on; `values` is lost."""
    distance = 1
    while distance < count:
        for i in range(0, count, 2 * distance):
            values[i] = values[i] + values[i + distance]
        distance *= 2
    return values[0]


@jit()
def _over_states(x: Any, y: Any, rows: Any, parts: Any) -> Any:
    """sum x y over the states."""
    size = x.size // parts.size
    for part in range(parts.size):
        total = _ZERO
        for i in range(part * size, part * size + size):
            total = fma(x[i], y[i], total) if i % size else x[i] * y[i]
        parts[part] = total
    if rows:
        return (parts[0] + parts[2]) + (parts[1] + parts[3])
    return _tree(parts, parts.size)


@jit()
def _adjoint(
    edge: Any,
    step: Any,
    scaled: Any,
    b: Any,
    c: Any,
    rows: Any,
    carried: Any,
    a_bar: Any,
    b_bar: Any,
    c_bar: Any,
    states: Any,
    cotangents: Any,
    sums: Any,
    parts: Any,
) -> Any:
    """The steps between two kept states, of one channel.

    step [3, E]: d, d u and pbar; b, c [E, N]; carried, a_bar, b_bar, c_bar [N] go on.
    Fills states and cotangents [E, N]: h and g; sums [3, E]: sum g B, sum l A log2(e)
    and C . h.
    """
    count, width = b.shape
    decays = np.empty((count, width), np.float32)
    logs = np.empty(width, np.float32)
    for t in range(count):
        for n in range(width):
            before = states[t - 1, n] if t else edge[n]
            decays[t, n] = exp2_product(step[0, t], scaled[n])
            states[t, n] = fma(decays[t, n], before, step[1, t] * b[t, n])
        sums[2, t] = _over_states(c[t], states[t], rows, parts)
    for t in range(count - 1, -1, -1):
        for n in range(width):
            before = states[t - 1, n] if t else edge[n]
            g = fma(step[2, t], c[t, n], carried[n])
            cotangents[t, n] = g
            carried[n] = decays[t, n] * g
            logs[n] = carried[n] * before
            a_bar[n] = fma(logs[n], step[0, t], a_bar[n])
            b_bar[n] = fma(g, step[1, t], b_bar[n])
            c_bar[n] = fma(step[2, t], states[t, n], c_bar[n])
        sums[0, t] = _over_states(cotangents[t], b[t], rows, parts)
        sums[1, t] = _over_states(logs, scaled, rows, parts)


@jit()
def _over_channels(
    x: Any, y: Any, rows: Any, channels: Any, warps: Any, to: Any
) -> Any:
    """sum x[d, t] y[d, t, n] over d, into to [t, n]."""
    count = x.shape[0]
    in_warp = np.empty(channels, np.float32)
    for t in range(x.shape[1]):
        for n in range(y.shape[2]):
            total = _ZERO
            for block in range(0, count, warps * channels):
                of_block = _ZERO
                for warp in range(warps):
                    first = block + warp * channels
                    if rows:
                        if first >= count:
                            continue
                        value = _ZERO
                        for pair in range(8):
                            low, high = first + pair, first + pair + 8
                            both = fma(y[high, t, n], x[high, t], y[low, t, n] * x[low, t])
                            value = value + both if pair else both
                    else:
                        for i in range(channels):
                            d = first + i
                            in_warp[i] = x[d, t] * y[d, t, n] if d < count else _ZERO
                        value = _tree(in_warp, channels)
                    of_block = of_block + value if warp else value
                total = total + of_block if block else of_block
            to[t, n] = total


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
    curved: Any,
    rows: Any,
    edge_steps: Any,
    channels: Any,
    warps: Any,
    parts: Any,
    bars: Any,
    carried: Any,
    state_sums: Any,
    channel_sums: Any,
    key_sums: Any,
) -> Any:
    """The channels of one batch row and group.

    u, delta, z, y_bar [D, L]; z and skip may be None; scaled [D, N]; b, c [L or 1, N] or
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
                size_of_step, slopes[t] = _step_size(delta[d, at] + bias[d], curved)
                gates[0, t] = gates[1, t] = y_bar[d, at]
                if z is not None:
                    value, slope = _gate(z[d, at])
                    gates[0, t] = y_bar[d, at] * value
                    gates[1, t] = y_bar[d, at] * slope
                step[d, 0, t] = size_of_step
                step[d, 1, t] = size_of_step * u[d, at]
                step[d, 2, t] = gates[0, t]
                for n in range(width):
                    keys[0, t, n] = b[d % b.shape[0], at % b.shape[1], n]
                    keys[1, t, n] = c[d % c.shape[0], at % c.shape[1], n]
            _adjoint(
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
            )
            if not rows:
                lanes[:, d] = _ZERO
            for t in range(size - 1, -1, -1):
                at = first + t
                output, of_written = sums[2, t], sums[0, t]
                if skip is not None:
                    output = fma(skip[d], u[d, at], output)
                bars[2, d, at] = gates[1, t] * output
                u_bar = of_written * step[d, 0, t]
                if rows:
                    has = _ZERO if skip is None else skip[d]
                    u_bar = fma(has, gates[0, t], u_bar)
                elif skip is not None:
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
                    channel_sums[i, d] = channel_sums[i, d] + _tree(lanes[i, d], 32)
        for i in range(2):
            _over_channels(
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
) -> dict[str, torch.Tensor]:
    """The gradient of each tensor, by its name, and of initial_state.

    `edges` [B, ceil(L / E), D, N] are the states before each order.edge_steps steps.
    """
    u, A = tensors["u"], tensors["A"]
    batch, channels, length = u.shape
    states = A.shape[1]
    groups = max(x.shape[1] if x.ndim == 4 else 1 for x in (tensors["B"], tensors["C"]))
    in_group = channels // groups
    x = {
        name: _fp32(tensors[name]) if name in tensors else None
        for name in ("u", "delta", "z", "D", "delta_bias")
    }
    scaled = _padded(np.clip(_fp32(A) * LOG2_E, -_LARGEST, _LARGEST), order.width)
    bias = np.zeros(channels, np.float32) if x["delta_bias"] is None else x["delta_bias"]
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
            z = None if x["z"] is None else x["z"][row, own]
            _group(
                x["u"][row, own],
                x["delta"][row, own],
                z,
                cotangent[row, own],
                scaled[own],
                *(k[row, group] if k.ndim == 5 else k[own] for k in keys),
                None if x["D"] is None else x["D"][own],
                bias[own],
                kept[row, own],
                delta_softplus,
                order.rows,
                order.edge_steps,
                order.channels,
                order.warps,
                4 if order.rows else order.lanes,
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
    total = np.zeros_like(x[0])
    for row in x:
        total = total + row
    return total


def _keys(x: torch.Tensor, batch: int, groups: int, width: int) -> FloatArray:
    """B or C as [batch, groups, 1, L, N], or constant as [D, 1, N]."""
    if x.ndim == 2:
        return _padded(_fp32(x), width)[:, None].copy()
    keys = _fp32(x).reshape(batch, groups, 1, *x.shape[-2:]).swapaxes(-1, -2)
    return _padded(keys, width).copy()


def _padded(x: FloatArray, width: int) -> FloatArray:
    """Zeros behind the last axis up to `width`."""
    padded: FloatArray = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])
    return padded


def _fp32(x: torch.Tensor) -> FloatArray:
    array: FloatArray = x.detach().float().cpu().contiguous().numpy()
    return array
