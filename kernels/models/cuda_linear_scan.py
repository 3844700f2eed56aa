"""linear_scan on the CPU, operation by operation as the CUDA kernels compute it.

In fp32 with fused multiply-adds, whatever the storage. A chunk is `rows` rows of
`steps` steps:

    row map      the steps of a row combined one after another
    before[r]    the row maps before row r combined one after another; none for row 0
    S_out        all row maps of the chunk applied to S_in, the state before the chunk
    S_t          before[r] applied to S_in, then step after step through row r

with the combinations of kernels/cuda/sources/affine.cuh.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scancheck.oracles.fma import fma
from scancheck.oracles.jit import jit

FloatArray = NDArray[np.float32]

PLAIN, KAHAN, FULL = range(3)
COMPENSATIONS = {"plain": PLAIN, "kahan": KAHAN, "full": FULL}

_ZERO = np.float32(0.0)


@jit(inline="always")
def two_sum(x: Any, y: Any) -> Any:
    """x + y rounded, and its exact error (Knuth)."""
    total = x + y
    y_seen = total - x
    x_seen = total - y_seen
    return total, (x - x_seen) + (y - y_seen)


@jit()
def applied(
    comp: Any,
    decay: Any,
    drive: Any,
    decay_rest: Any,
    drive_rest: Any,
    x: Any,
    rest: Any,
) -> Any:
    """The state (x, rest) after a map; a rest of the map that is None is not there."""
    if comp == PLAIN:
        return fma(decay, x, drive), _ZERO
    product = decay * x
    total, error = two_sum(product, drive)
    if comp == FULL:
        error = fma(decay, x, -product) + error
    rest = fma(decay, rest, error)
    if decay_rest is not None and comp == FULL:
        rest = fma(decay_rest, x, rest)
    if drive_rest is not None:
        rest = rest + drive_rest
    return total, rest


@jit()
def combined(
    comp: Any,
    left: Any,
    decay: Any,
    drive: Any,
    decay_rest: Any,
    drive_rest: Any,
) -> Any:
    """The map `left` (decay, drive, decay rest, drive rest), then the other one."""
    total, rest = applied(comp, decay, drive, decay_rest, drive_rest, left[1], left[3])
    product = decay * left[0]
    product_rest = _ZERO
    if comp == FULL:
        product_rest = fma(decay, left[0], -product)
        product_rest = fma(decay, left[2], product_rest)
        if decay_rest is not None:
            product_rest = fma(decay_rest, left[0], product_rest)
    return product, total, product_rest, rest


@jit()
def rounded(comp: Any, x: Any, rest: Any) -> Any:
    """The state as one number; an infinity stays whatever its rest is."""
    if comp == PLAIN or not np.isfinite(x):
        return x
    return x + rest


@jit()
def scan(
    comp: Any, rows: Any, steps: Any, decay: Any, rest: Any, drive: Any, initial: Any
) -> Any:
    """States [N, T], final states [N], and the states before chunks [N, chunks, 2].

    decay, drive [N, T] and initial [N] in float32; rest is the decay's low word [N, T],
    or None. T is at least 1.
    """
    lanes, length = drive.shape
    chunk = rows * steps
    chunks = -(-length // chunk)
    states = np.empty_like(drive)
    final = np.empty_like(initial)
    edges = np.zeros((lanes, chunks, 2), np.float32)
    for n in range(lanes):
        value, low = initial[n], _ZERO
        for k in range(chunks):
            edges[n, k, 0], edges[n, k, 1] = value, low
            before = (_ZERO, _ZERO, _ZERO, _ZERO)
            for r in range(rows):
                first = k * chunk + r * steps
                if first >= length:
                    break
                x, x_low = value, low
                if r > 0:
                    x, x_low = applied(
                        comp, before[0], before[1], before[2], before[3], value, low
                    )
                row = (decay[n, first], drive[n, first], _ZERO, _ZERO)
                if rest is not None:
                    row = (row[0], row[1], rest[n, first], _ZERO)
                for t in range(first, min(first + steps, length)):
                    low_word = None if rest is None else rest[n, t]
                    x, x_low = applied(
                        comp, decay[n, t], drive[n, t], low_word, None, x, x_low
                    )
                    states[n, t] = rounded(comp, x, x_low)
                    if t > first:
                        row = combined(
                            comp, row, decay[n, t], drive[n, t], low_word, None
                        )
                before = (
                    row
                    if r == 0
                    else combined(comp, before, row[0], row[1], row[2], row[3])
                )
                final[n] = states[n, min(first + steps, length) - 1]
            value, low = applied(
                comp, before[0], before[1], before[2], before[3], value, low
            )
    return states, final, edges


def linear_scan(
    variant: str,
    rows: int,
    steps: int,
    a: torch.Tensor,
    b: torch.Tensor,
    initial_state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """h [B, T, D] in the dtype of b and the final state [B, D] in fp32."""
    batches, length, channels = b.shape
    initial = torch.zeros(batches, channels)
    if initial_state is not None:
        initial = initial_state.detach().clone()
    if b.numel() == 0:
        return torch.empty_like(b), initial
    states, final, _ = scan(
        COMPENSATIONS[variant],
        rows,
        steps,
        _lanes(a),
        None,
        _lanes(b),
        initial.reshape(-1).numpy(),
    )
    h = torch.from_numpy(states).reshape(batches, channels, length)
    return h.mT.to(b.dtype).contiguous(), torch.from_numpy(final).reshape_as(initial)


def _lanes(x: torch.Tensor) -> FloatArray:
    """[B, T, D] -> [B D, T] in fp32, exactly."""
    lanes: FloatArray = x.detach().float().mT.contiguous().flatten(0, 1).numpy()
    return lanes
