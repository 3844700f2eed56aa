"""Chunks in log space: every decay is the exponential of a difference of sums.

With c the sum of the log decays from the chunk's start,

    h_t = sum_{j <= t} exp(c_t - c_j) b_j + exp(c_t) S_in,

the sum taken in the order of j and the carried-in state added last. The in-chunk sums c
are formed sequentially or by Hillis-Steele. The difference of two long sums keeps their
absolute error, so the error grows with the chunk (numerics 2.5). A log decay of -inf
gives NaN: -inf - (-inf) has no value.

Contract: log=diff, structure chunk(C, order of c, sequential).
"""

from collections.abc import Callable

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.combine import Affine, value


def log_difference(
    arithmetic: Arithmetic,
    log_decay: Array,
    drive: Array,
    initial: Affine,
    *,
    chunk: int,
    inner: str,
    store: Callable[[Affine], Affine],
) -> Array:
    """The states after each step, shaped as `drive`: [T, lanes].

    `inner` is "sequential" or "tree", the order of the sums of log decays. The state
    carried over a chunk edge goes through `store`.
    """
    length, *lanes = drive.shape
    if length == 0:
        return drive.copy()
    chunk = min(chunk, length)
    sums = _by_chunk(log_decay, chunk)
    sums = (_tree_sums if inner == "tree" else _sequential_sums)(arithmetic, sums)
    local = _local_states(arithmetic, sums, _by_chunk(drive, chunk))
    from_start = arithmetic.exp(sums)
    states = np.empty_like(local)
    carried = initial
    for k in range(len(states)):
        inherited = arithmetic.mul(from_start[k], value(arithmetic, carried))
        states[k] = arithmetic.add(inherited, local[k])
        carried = store(Affine(drive=states[k, -1]))
    return states.reshape(len(states) * chunk, *lanes)[:length]


def _local_states(arithmetic: Arithmetic, sums: Array, drive: Array) -> Array:
    """What the chunk's own steps leave in the state, [chunks, C, lanes].

    All t >= j take their j-th term together: each sum over j still runs upwards.
    """
    local = np.zeros_like(drive)
    for j in range(drive.shape[1]):
        gap = arithmetic.sub(sums[:, j:], sums[:, j : j + 1])
        term = arithmetic.mul(arithmetic.exp(gap), drive[:, j : j + 1])
        local[:, j:] = arithmetic.add(local[:, j:], term)
    return local


def _sequential_sums(arithmetic: Arithmetic, x: Array) -> Array:
    sums = x.copy()
    for t in range(1, x.shape[1]):
        sums[:, t] = arithmetic.add(sums[:, t - 1], x[:, t])
    return sums


def _tree_sums(arithmetic: Arithmetic, x: Array) -> Array:
    sums = x
    reach = 1
    while reach < x.shape[1]:
        grown = arithmetic.add(sums[:, :-reach], sums[:, reach:])
        sums = np.concatenate((sums[:, :reach], grown), axis=1)
        reach *= 2
    return sums


def _by_chunk(x: Array, chunk: int) -> Array:
    """[T, lanes] -> [ceil(T / C), C, lanes], filled up with zeros."""
    length, *lanes = x.shape
    padding = np.zeros((-length % chunk, *lanes), x.dtype)
    count = -(-length // chunk)
    return np.concatenate((x, padding)).reshape(count, chunk, *lanes)
