"""The frame of the log forms that work in chunks.

A form says what each chunk makes of the state carried into it. The chain is the same
for all: S_in of the first chunk is the initial state, and the last state of a chunk is
S_in of the next, through `store`.

Arrays are [C, chunks, lanes], position in the chunk first; the last chunk is filled up
with steps of log decay 0, decay 1 and drive 0.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.chunks import by_position, by_time

Chunks = int | slice
StatesFrom = Callable[[Chunks, Array], Array]
"""(chunks, carried) -> states: of one chunk [C, lanes] from [lanes], or of a slice of
them [C, chunks, lanes] from [chunks, lanes]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSteps:
    """The steps by position in the chunk, [C, chunks, lanes]."""

    log_decay: Array
    decay: Array
    drive: Array


Form = Callable[[Arithmetic, ChunkSteps, str], StatesFrom]


def chunk_steps(log_decay: Array, decay: Array, drive: Array, chunk: int) -> ChunkSteps:
    """Steps [T, lanes] by position in their chunk, the last chunk filled up."""
    return ChunkSteps(
        log_decay=by_position(log_decay, chunk, 0.0),
        decay=by_position(decay, chunk, 1.0),
        drive=by_position(drive, chunk, 0.0),
    )


def chained(
    states_from: StatesFrom,
    length: int,
    chunk: int,
    initial: Array,
    store: Callable[[Array], Array],
) -> tuple[Array, Array]:
    """States [T, lanes] and the state each chunk starts from, [chunks, lanes]."""
    count = -(-length // chunk)
    edges, chunks = [initial], []
    for k in range(count):
        chunks.append(states_from(k, edges[k]))
        edges.append(store(chunks[k][-1]))
    return by_time(np.stack(chunks, axis=1), length), np.stack(edges[:count])


def inherited_and_own(arithmetic: Arithmetic, sums: Array, own: Array) -> StatesFrom:
    """exp(c_t) S_in + own_t, for the forms that add the carried state last."""
    decay = arithmetic.exp(sums)

    def states_from(chunks: Chunks, carried: Array) -> Array:
        inherited = arithmetic.mul(decay[:, chunks], carried)
        return arithmetic.add(inherited, own[:, chunks])

    return states_from
