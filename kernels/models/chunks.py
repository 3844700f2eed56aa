"""Steps by time and by position in their chunk.

[T, lanes] <-> [C, chunks, lanes]: the same position of all chunks is one row, so that
all chunks go through a scan in lockstep.
"""

import numpy as np

from scancheck.kernels.models.arithmetic import Array


def by_position(x: Array, chunk: int, filler: float) -> Array:
    """[T, lanes] -> [C, ceil(T / C), lanes], the last chunk filled up."""
    length, *lanes = x.shape
    count = -(-length // chunk)
    missing = np.full((count * chunk - length, *lanes), filler, x.dtype)
    return np.swapaxes(np.concatenate((x, missing)).reshape(count, chunk, *lanes), 0, 1)


def by_time(x: Array, length: int) -> Array:
    """[C, chunks, lanes] -> [T, lanes], without what filled up the last chunk."""
    chunk, count, *lanes = x.shape
    return np.swapaxes(x, 0, 1).reshape(count * chunk, *lanes)[:length]
