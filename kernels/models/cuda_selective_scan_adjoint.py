"""Loops of the backward pass of selective_scan over steps, states and channels.

They have the operations of kernels/cuda/sources/selective_scan_backward_*.cuh, with the
functions `Reproducible`, or with a table of the hardware's exponential `Tabulated`.
cuda_selective_scan_backward.py tells the orders of the sums.
"""

from typing import Any

import numpy as np

from scancheck.kernels.models import cuda_ex2, cuda_functions
from scancheck.kernels.models.cuda_arithmetic import fma, max_or_nan, min_or_nan
from scancheck.kernels.models.cuda_functions import (
    SILU_LOWEST,
    log1p_unit,
    sigmoid_of,
)
from scancheck.kernels.models.cuda_selective_scan import decay_of
from scancheck.kernels.models.jit import jit

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_SILU_HIGHEST = -SILU_LOWEST


@jit()
def _exp(x: Any, table: Any) -> Any:
    """e**x, by the hardware's table where there is one."""
    if table is None:
        return cuda_functions.exp(x)
    return cuda_ex2.exp(x, table)


@jit()
def step_size(x: Any, curved: Any, table: Any) -> Any:
    """d and its slope by delta + bias."""
    e = _exp(-abs(x), table)
    small = sigmoid_of(_ONE, e)
    softplus = max_or_nan(x, _ZERO) + log1p_unit(e)
    slope = e * small if x < _ZERO else small
    return (softplus, slope) if curved else (x, _ONE)


@jit()
def gate(z: Any, table: Any) -> Any:
    """silu(z) and its slope."""
    e = _exp(-abs(z), table)
    small = sigmoid_of(_ONE, e)
    other = e * small
    of_z = other if z < _ZERO else small
    of_minus_z = small if z < _ZERO else other
    low = max_or_nan(z, SILU_LOWEST)
    return low * of_z, of_z * fma(min_or_nan(low, _SILU_HIGHEST), of_minus_z, _ONE)


@jit()
def tree(values: Any, count: Any) -> Any:
    """Neighbours, then neighbouring pairs, and so on; `values` is lost."""
    distance = 1
    while distance < count:
        for i in range(0, count, 2 * distance):
            values[i] = values[i] + values[i + distance]
        distance *= 2
    return values[0]


@jit()
def over_states(x: Any, y: Any, rows: Any, parts: Any) -> Any:
    """sum x y over the states."""
    size = x.size // parts.size
    for part in range(parts.size):
        total = _ZERO
        for i in range(part * size, part * size + size):
            total = fma(x[i], y[i], total) if i % size else x[i] * y[i]
        parts[part] = total
    if rows:
        return (parts[0] + parts[2]) + (parts[1] + parts[3])
    return tree(parts, parts.size)


@jit()
def adjoint(
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
    table: Any,
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
            decays[t, n] = decay_of(step[0, t], scaled[n], table)
            states[t, n] = fma(decays[t, n], before, step[1, t] * b[t, n])
        sums[2, t] = over_states(c[t], states[t], rows, parts)
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
        sums[0, t] = over_states(cotangents[t], b[t], rows, parts)
        sums[1, t] = over_states(logs, scaled, rows, parts)


@jit()
def _of_warp(x: Any, y: Any, rows: Any, first: Any, in_warp: Any) -> Any:
    """sum x[d] y[d] over the channels of the warp from `first` on."""
    channels = in_warp.size
    if not rows:
        for i in range(channels):
            d = first + i
            in_warp[i] = x[d] * y[d] if d < x.size else _ZERO
        return tree(in_warp, channels)
    total = _ZERO
    for low in range(first, first + channels // 2):
        high = low + channels // 2
        both = fma(y[high], x[high], y[low] * x[low])
        total = total + both if low > first else both
    return total


@jit()
def over_channels(x: Any, y: Any, rows: Any, channels: Any, warps: Any, to: Any) -> Any:
    """sum x[d, t] y[d, t, n] over d, into to [t, n]."""
    count = x.shape[0]
    in_warp = np.empty(channels, np.float32)
    for t in range(x.shape[1]):
        for n in range(y.shape[2]):
            total = _ZERO
            for block in range(0, count, warps * channels):
                of_block = _ZERO
                for first in range(block, block + warps * channels, channels):
                    if rows and first >= count:
                        break
                    value = _of_warp(x[:, t], y[:, t, n], rows, first, in_warp)
                    of_block = of_block + value if first > block else value
                total = total + of_block if block else of_block
            to[t, n] = total
