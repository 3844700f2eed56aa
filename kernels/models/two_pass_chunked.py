"""Chunk totals first, then the carry from chunk to chunk, then every chunk again.

Pass 1 combines the steps of each chunk but the last; the carry chain applies these
totals one after another; pass 2 scans each chunk from its carried-in state. Both passes
scan inside the chunk sequentially or by Hillis-Steele.

Contract: structure chunk(C, inner, sequential, order), the order stepwise inside when
`inner` is sequential and hillis_steele when it is a tree. A term passes at most
2 (C - 1) + 1 additions inside chunks when `inner` is sequential, 2 ceil(log2 C) + 1
when it is a tree, and one for each chunk edge that it crosses.
"""

from collections.abc import Callable

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.combine import Affine, Combine, each, join, take, value
from scancheck.kernels.models.hillis_steele import hillis_steele, prefixes


def two_pass_chunked(
    arithmetic: Arithmetic,
    combine: Combine,
    steps: Affine,
    initial: Affine,
    *,
    chunk: int,
    inner: str,
    store: Callable[[Affine], Affine],
) -> Array:
    """The states after each step, shaped as `steps`: [T, lanes].

    `inner` is "sequential" or "tree". The state carried over a chunk edge goes through
    `store`; the initial state and the returned states do not.
    """
    length = len(steps.drive)
    if length == 0:
        return steps.drive.copy()
    chunk = min(chunk, length)
    edge = (length - 1) // chunk * chunk
    complete = take(steps, slice(None, edge))
    tree = inner == "tree"
    total = (tree_totals if tree else sequential_totals)(
        arithmetic, combine, complete, chunk
    )
    carried = carry_chain(arithmetic, combine, total, initial, store)
    scan = tree_pass if tree else sequential_pass
    return scan(arithmetic, combine, steps, carried, chunk)


def sequential_totals(
    arithmetic: Arithmetic, combine: Combine, steps: Affine, chunk: int
) -> Affine:
    """The combined step of each chunk, [T / C, lanes]; all chunks in lockstep."""
    total = take(steps, slice(0, None, chunk))
    for position in range(1, chunk):
        step = take(steps, slice(position, None, chunk))
        total = combine(arithmetic, total, step)
    return total


def tree_totals(
    arithmetic: Arithmetic, combine: Combine, steps: Affine, chunk: int
) -> Affine:
    """The combined step of each chunk, by Hillis-Steele inside it."""
    return take(prefixes(arithmetic, combine, _by_position(steps, chunk)), -1)


def carry_chain(
    arithmetic: Arithmetic,
    combine: Combine,
    total: Affine,
    initial: Affine,
    store: Callable[[Affine], Affine],
) -> Affine:
    """The state each chunk starts from, [chunks, lanes]: one more than totals."""
    drives = np.empty((len(total.drive) + 1, *initial.drive.shape), initial.drive.dtype)
    rests = np.zeros_like(drives)
    state = initial
    for k in range(len(drives)):
        if k > 0:
            state = store(combine(arithmetic, state, take(total, k - 1)))
        drives[k] = state.drive
        if state.drive_rest is not None:
            rests[k] = state.drive_rest
    return Affine(drive=drives, drive_rest=rests if rests.any() else None)


def sequential_pass(
    arithmetic: Arithmetic, combine: Combine, steps: Affine, carried: Affine, chunk: int
) -> Array:
    """The states of every chunk from its carried-in state; all chunks in lockstep."""
    states = np.empty_like(steps.drive)
    state = carried
    for position in range(chunk):
        step = take(steps, slice(position, None, chunk))
        state = take(state, slice(len(step.drive)))
        state = combine(arithmetic, state, step)
        states[position::chunk] = value(arithmetic, state)
    return states


def tree_pass(
    arithmetic: Arithmetic, combine: Combine, steps: Affine, carried: Affine, chunk: int
) -> Array:
    """The states of every chunk by Hillis-Steele from its carried-in state."""
    length, *lanes = steps.drive.shape
    padded = _by_position(_padded(steps, -length % chunk), chunk)
    states = hillis_steele(arithmetic, combine, padded, carried)
    by_time = np.swapaxes(states, 0, 1).reshape(len(carried.drive) * chunk, *lanes)
    return by_time[:length]


def _by_position(steps: Affine, chunk: int) -> Affine:
    """[T, lanes] -> [C, T / C, lanes], for T a multiple of C."""
    count = len(steps.drive) // chunk

    return each(
        steps, lambda x: np.swapaxes(x.reshape(count, chunk, *x.shape[1:]), 0, 1)
    )


def _padded(steps: Affine, count: int) -> Affine:
    """The steps and `count` identity steps."""
    zeros = np.zeros((count, *steps.drive.shape[1:]), dtype=steps.drive.dtype)
    rest = None if steps.decay_rest is None else zeros
    return join(steps, Affine(drive=zeros, decay=zeros + 1.0, decay_rest=rest))
