"""What the earlier tokens of a chunk have written, for gates that a chunk's end moves.

The cotangent of a log gate at t takes what the chunk hands on, the state at its end
times that state's cotangent. A chunk has it as one sum over all its tokens, the ones
before t included: their keys times the cotangents of their keys (numerics 2.9). In
exact arithmetic these are part of that product, but below the normal range each of them
is rounded by itself.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Earlier(NamedTuple):
    """Of the tokens before each one in its chunk."""

    keys: FloatArray  # sums of the sizes of keys, [G, T, K]
    values: FloatArray  # largest sizes of values, [G, T, L]
    number: FloatArray  # how many there are, [T]


class Begun(NamedTuple):
    """The same of the tokens of a chunk that a tile cuts, up to its edge."""

    keys: FloatArray  # [G, K]
    values: FloatArray  # [G, L]


def nothing_begun(groups: int, keys: int, lanes: int) -> Begun:
    """Before the first token."""
    return Begun(np.zeros((groups, keys)), np.zeros((groups, lanes)))


def earlier_in_chunk(
    keys: FloatArray, values: FloatArray, first: int, chunk: int, begun: Begun
) -> tuple[Earlier, Begun]:
    """Of sizes of keys [G, T, K] and values [G, T, L] of tokens from `first` on.

    `begun` is of the tokens before; second, the same after the last token.
    """
    steps = keys.shape[1]
    place = (first + np.arange(steps)) % chunk
    sums, tops = np.zeros_like(keys), np.zeros_like(values)
    edges = [0, *(np.flatnonzero(place[1:] == 0) + 1), steps]
    for start, stop in pairwise(edges):
        if start == stop:
            continue
        if place[start] == 0:
            begun = nothing_begun(len(keys), keys.shape[2], values.shape[2])
        sums[:, start], tops[:, start] = begun
        sums[:, start + 1 : stop] = keys[:, start : stop - 1]
        tops[:, start + 1 : stop] = values[:, start : stop - 1]
        np.cumsum(sums[:, start:stop], axis=1, out=sums[:, start:stop])
        np.maximum.accumulate(tops[:, start:stop], axis=1, out=tops[:, start:stop])
        begun = Begun(
            sums[:, stop - 1] + keys[:, stop - 1],
            np.maximum(tops[:, stop - 1], values[:, stop - 1]),
        )
    return Earlier(sums, tops, place.astype(np.float64)), begun
