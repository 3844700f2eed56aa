"""selective_scan on the CPU, operation by operation as the CUDA kernels compute it.

In fp32 with fused multiply-adds, whatever the storage; A log2 e is rounded first.

    sequential  one step after another. 8 states are a part, padded with zeros; of each
                part C . h is summed in order, then neighbouring parts, neighbouring
                pairs, and so on. Before every STATE_STEPS steps but the first
                the state is rounded to its format.
    time        tiles of 32 vectors of 16 bytes of steps. Of each vector the map over
                its steps; of four vectors theirs combined one after another; of these
                eight Hillis and Steele's scan (Commun. ACM 29, 1986); from it the state
                before each vector, and then its steps again. C . h in the order of the
                states.

Of the sequential order there is an accurate recurrence too; see
kernels/cuda/sources/selective_scan_recurrence.cuh. Exponentials are the own ones, or
the hardware's by its table (cuda_ex2).
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scancheck.formats import format_named
from scancheck.kernels.models import cuda_ex2, cuda_functions
from scancheck.kernels.models.cuda_arithmetic import numbers_of, stored
from scancheck.kernels.models.cuda_functions import EXP2, fma
from scancheck.kernels.models.jit import jit

FloatArray = NDArray[np.float32]

PART = 8  # states of one lane
STATE_STEPS = 32
TIME_STATES = 16  # what the states of the other order are padded to
LANES = 32
GROUP = 4  # lanes whose maps one lane combines
GROUPS = LANES // GROUP

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_SHIFT = np.float32(1.5 * 2.0**23)
_LOG2_E = np.float32(float.fromhex("0x1.715476p+0"))
_LARGEST = np.float32(np.finfo(np.float32).max)
_A0, _A1, _A2, _A3, _A4, _A5 = (np.float32(c) for c in EXP2)


@jit()
def decay_of(d: Any, scaled: Any, table: Any) -> Any:
    """2**(d scaled), by the hardware's table where there is one."""
    if table is None:
        return cuda_functions.exp2_product(d, scaled)
    return cuda_ex2.exp2_product(d, scaled, table)


@jit()
def _softplus(x: Any, table: Any) -> Any:
    if table is None:
        return cuda_functions.softplus(x)
    return cuda_ex2.softplus(x, table)


@jit()
def _silu(x: Any, table: Any) -> Any:
    if table is None:
        return cuda_functions.silu(x)
    return cuda_ex2.silu(x, table)


@jit()
def _advanced(
    d: Any, scaled: Any, drive: Any, h: Any, rest: Any, accurate: Any, table: Any
) -> Any:
    """h and its rest after one step."""
    if not accurate:
        return fma(decay_of(d, scaled, table), h, drive), _ZERO
    n = fma(d, scaled, _SHIFT) - _SHIFT
    if n == _ZERO:
        f = fma(d, scaled, -n)
        p = fma(f, _A5, _A4)
        p = fma(f, p, _A3)
        p = fma(f, p, _A2)
        p = fma(f, p, _A1)
        p = fma(f, p, _A0)
        factor = fma(f, p, _ZERO)
        kept, kept_rest = h, rest
    else:
        factor = decay_of(d, scaled, table)
        kept, kept_rest = _ZERO, _ZERO
    increment = fma(factor, h, drive) + fma(factor, rest, kept_rest)
    total = kept + increment
    return total, increment - (total - kept)


@jit()
def _step_sizes(
    delta: Any, u: Any, bias: Any, curved: Any, table: Any, d: Any, written: Any
) -> Any:
    """d and d u of every step, into `d` and `written`."""
    for t in range(delta.size):
        x = delta[t] + bias
        d[t] = _softplus(x, table) if curved else x
        written[t] = d[t] * u[t]


@jit()
def _pairwise_sum(sums: Any, count: Any) -> Any:
    """The first `count` of `sums`, which it overwrites: neighbours, then pairs, ..."""
    distance = 1
    while distance < count:
        for k in range(0, count, 2 * distance):
            sums[k] = sums[k] + sums[k + distance]
        distance *= 2
    return sums[0]


@jit()
def sequential(
    u: Any,
    delta: Any,
    scaled: Any,
    keys: Any,
    rows: Any,
    bias: Any,
    h: Any,
    curved: Any,
    table: Any,
    accurate: Any,
    state: Any,
    edges: Any,
    edge_steps: Any,
    y: Any,
) -> Any:
    """C . h of every step into y [R, L]; h [R, N] becomes the last states.

    u, delta [R, L]; scaled [R, N]; B and C in `keys` [2, K, L, N], of which row r has
    those of index rows[r]; bias [R]. N is padded to a power of two of parts. edges
    [R, ceil(L / edge_steps), N] become the states before each edge_steps steps.
    """
    states = scaled.shape[1]
    parts = states // PART
    d, written = np.empty_like(u[0]), np.empty_like(u[0])
    sums = np.empty(parts, np.float32)
    for row in range(u.shape[0]):
        _step_sizes(delta[row], u[row], bias[row], curved, table, d, written)
        b, c = keys[0][rows[row]], keys[1][rows[row]]
        rest = np.zeros(states, np.float32)
        for t in range(d.size):
            if t > 0 and t % STATE_STEPS == 0:
                for n in range(states):
                    h[row, n] = stored(h[row, n], state)
            if t % edge_steps == 0:
                edges[row, t // edge_steps] = h[row]
            step = t if b.shape[0] > 1 else 0
            c_step = t if c.shape[0] > 1 else 0
            for part in range(parts):
                total = _ZERO
                for n in range(part * PART, part * PART + PART):
                    h[row, n], rest[n] = _advanced(
                        d[t],
                        scaled[row, n],
                        written[t] * b[step, n],
                        h[row, n],
                        rest[n],
                        accurate,
                        table,
                    )
                    value = h[row, n]
                    if n % PART:
                        total = fma(c[c_step, n], value, total)
                    else:
                        total = c[c_step, n] * value
                sums[part] = total
            y[row, t] = _pairwise_sum(sums, parts)


@jit()
def time(
    u: Any,
    delta: Any,
    scaled: Any,
    keys: Any,
    rows: Any,
    bias: Any,
    h: Any,
    curved: Any,
    table: Any,
    vector: Any,
    y: Any,
) -> Any:
    """As `sequential`, in the order of time, with `vector` steps in 16 bytes."""
    length, states = u.shape[1], scaled.shape[1]
    tile = LANES * vector
    tiles = -(-length // tile)
    d = np.zeros(tiles * tile, np.float32)
    written = np.zeros(tiles * tile, np.float32)
    decays = np.empty(tile, np.float32)
    drives = np.empty(tile, np.float32)
    outputs = np.empty(tile, np.float32)
    totals = np.empty(LANES, np.float32)
    sums = np.empty(max(vector, GROUP), np.float32)
    ends = np.empty(LANES, np.float32)
    lane_decays = np.empty(LANES, np.float32)
    group_ends = np.empty(GROUPS, np.float32)
    group_decays = np.empty(GROUPS, np.float32)
    group_totals = np.empty(GROUPS, np.float32)
    for row in range(u.shape[0]):
        _step_sizes(
            delta[row],
            u[row],
            bias[row],
            curved,
            table,
            d[:length],
            written[:length],
        )
        b, c = keys[0][rows[row]], keys[1][rows[row]]
        for first in range(0, length, tile):
            for lane in range(LANES):
                sums[:vector] = d[first + lane * vector : first + (lane + 1) * vector]
                totals[lane] = _pairwise_sum(sums, vector)
            for group in range(GROUPS):
                sums[:GROUP] = totals[group * GROUP : (group + 1) * GROUP]
                group_totals[group] = _pairwise_sum(sums, GROUP)
            outputs[:] = _ZERO
            for n in range(states):
                scale = scaled[row, n]
                for lane in range(LANES):
                    for k in range(lane * vector, lane * vector + vector):
                        t = first + k
                        decays[k] = decay_of(d[t], scale, table)
                        drives[k] = written[t] * (b[t, n] if t < length else _ZERO)
                        if k % vector:
                            ends[lane] = fma(decays[k], ends[lane], drives[k])
                        else:
                            ends[lane] = drives[k]
                    lane_decays[lane] = decay_of(totals[lane], scale, table)
                for group in range(GROUPS):
                    end = ends[group * GROUP]
                    for lane in range(group * GROUP + 1, (group + 1) * GROUP):
                        end = fma(lane_decays[lane], end, ends[lane])
                    group_ends[group] = end
                    group_decays[group] = decay_of(group_totals[group], scale, table)
                group_ends[0] = fma(group_decays[0], h[row, n], group_ends[0])
                distance = 1
                while distance < GROUPS:
                    for group in range(GROUPS - 1, distance - 1, -1):
                        below = group - distance
                        group_ends[group] = fma(
                            group_decays[group], group_ends[below], group_ends[group]
                        )
                        group_decays[group] = group_decays[group] * group_decays[below]
                    distance *= 2
                for group in range(GROUPS):
                    before = group_ends[group - 1] if group else h[row, n]
                    for lane in range(group * GROUP, (group + 1) * GROUP):
                        value = before
                        before = fma(lane_decays[lane], before, ends[lane])
                        for k in range(lane * vector, lane * vector + vector):
                            t = first + k
                            value = fma(decays[k], value, drives[k])
                            key = c[t, n] if t < length else _ZERO
                            outputs[k] = fma(key, value, outputs[k])
                h[row, n] = group_ends[GROUPS - 1]
            for k in range(min(tile, length - first)):
                y[row, first + k] = outputs[k]


@jit()
def _gated(y: Any, u: Any, skip: Any, z: Any, table: Any) -> Any:
    """(y + D u) silu(z), in place; None for what there is not."""
    for row in range(y.shape[0]):
        for t in range(y.shape[1]):
            value = y[row, t]
            if skip is not None:
                value = fma(skip[row], u[row, t], value)
            if z is not None:
                value = value * _silu(z[row, t], table)
            y[row, t] = value


def selective_scan(
    order: str,
    variant: str,
    u: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    delta_softplus: bool = False,
    state: str = "fp32",
) -> tuple[torch.Tensor, torch.Tensor]:
    """y [B, D, L] in the dtype of u and the last state [B, D, N] in fp32.

    `order` is sequential or time, `variant` reproducible, tabulated or, of the
    sequential order, accurate. In time B and C vary in time. `state` is the format of
    the state in the sequential order.
    """
    batch, channels, length = u.shape
    states = A.shape[1]
    if u.numel() == 0:
        empty = torch.zeros(batch, channels, states)
        return torch.empty_like(u), (
            empty if initial_state is None else initial_state.detach().clone()
        )
    given = (u, delta, A, B, C, delta_bias, initial_state, delta_softplus)
    y, h, _ = _scanned(order, variant, state, max(length, 1), *given)
    skip, gates = _by_row(D, batch), None if z is None else _rows(z)
    _gated(y, _rows(u), skip, gates, _table(variant))
    # As on the device, no last state is -0.
    last = torch.from_numpy(h[:, :states] + _ZERO)
    return (
        torch.from_numpy(y).reshape(u.shape).to(u.dtype),
        last.reshape(batch, channels, states),
    )


def kept_states(
    variant: str,
    edge_steps: int,
    u: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    delta_bias: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    delta_softplus: bool = False,
    state: str = "fp32",
) -> torch.Tensor:
    """[B, ceil(L / edge_steps), D, N]: the states before each edge_steps steps.

    Those of the sequential order, which the backward pass starts from.
    """
    batch, channels, length = u.shape
    states = A.shape[1]
    count = -(-length // edge_steps)
    if u.numel() == 0:
        return torch.zeros(batch, count, channels, states)
    given = (u, delta, A, B, C, delta_bias, initial_state, delta_softplus)
    _, _, edges = _scanned("sequential", variant, state, edge_steps, *given)
    by_row = torch.from_numpy(edges[..., :states].copy())
    return by_row.reshape(batch, channels, count, states).transpose(1, 2).contiguous()


def _scanned(
    order: str,
    variant: str,
    state: str,
    edge_steps: int,
    u: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    delta_bias: torch.Tensor | None,
    initial_state: torch.Tensor | None,
    delta_softplus: bool,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """C . h [B D, L], the last states [B D, N] and kept ones, with N padded."""
    batch, channels, length = u.shape
    width = _width(order, A.shape[1])
    scaled = np.clip(_fp32(A) * _LOG2_E, -_LARGEST, _LARGEST)
    h = np.zeros((batch * channels, width), np.float32)
    if initial_state is not None:
        h[:, : A.shape[1]] = _fp32(initial_state).reshape(-1, A.shape[1])
    bias = _by_row(delta_bias, batch)
    y = np.empty((batch * channels, length), np.float32)
    edges = np.zeros((len(h), -(-length // edge_steps), width), np.float32)
    keys, rows = _keys(B, C, batch, channels, width)
    shared = (
        _rows(u),
        _rows(delta),
        np.tile(_padded(scaled, width), (batch, 1)),
        keys,
        rows,
        np.zeros(batch * channels, np.float32) if bias is None else bias,
        h,
        delta_softplus,
        _table(variant),
    )
    if order == "sequential":
        accurate, kept = variant == "accurate", numbers_of(format_named(state))
        sequential(*shared, accurate, kept, edges, edge_steps, y)
    else:
        time(*shared, 16 // u.element_size(), y)
    return y, h, edges


def _table(variant: str) -> FloatArray | None:
    """The hardware's exponential, where the variant has it."""
    return cuda_ex2.table() if variant == "tabulated" else None


def _width(order: str, states: int) -> int:
    """N with the padding of the order."""
    if order == "time":
        return -(-states // TIME_STATES) * TIME_STATES
    parts = 2
    while parts * PART < states:
        parts *= 2
    return parts * PART


def _keys(
    B: torch.Tensor, C: torch.Tensor, batch: int, channels: int, width: int
) -> tuple[tuple[FloatArray, FloatArray], NDArray[np.int64]]:
    """B and C as [K, L or 1, N], and which K each row [B D] has."""
    grouped = [x for x in (B, C) if x.ndim > 2]
    groups = grouped[0].shape[1] if grouped and grouped[0].ndim == 4 else 1
    per_group = channels // groups
    rows = np.arange(batch * channels)
    index = rows if len(grouped) < 2 else rows // per_group
    return (
        _key(B, batch, groups, per_group, width, len(grouped) < 2),
        _key(C, batch, groups, per_group, width, len(grouped) < 2),
    ), index


def _key(
    x: torch.Tensor, batch: int, groups: int, per_group: int, width: int, by_row: bool
) -> FloatArray:
    """One of them; of every row where the other one is constant."""
    if x.ndim == 2:
        return np.tile(_padded(_fp32(x), width), (batch, 1))[:, None, :].copy()
    x = x.detach().float().reshape(batch * groups, *x.shape[-2:]).mT
    keys = _padded(x.contiguous().numpy(), width)
    return np.repeat(keys, per_group, axis=0) if by_row else keys


def _padded(x: FloatArray, width: int) -> FloatArray:
    """Zeros behind the last axis up to `width`."""
    space = [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])]
    padded: FloatArray = np.pad(x, space)
    return padded


def _fp32(x: torch.Tensor) -> FloatArray:
    array: FloatArray = x.detach().float().contiguous().numpy()
    return array


def _rows(x: torch.Tensor) -> FloatArray:
    """[B, D, L] -> [B D, L]."""
    rows: FloatArray = _fp32(x).reshape(-1, x.shape[-1])
    return rows


def _by_row(x: torch.Tensor | None, batch: int) -> FloatArray | None:
    """[D] -> [B D]."""
    return None if x is None else np.tile(_fp32(x), batch)
