"""The frame of the log forms that work in chunks.

A form says what each chunk makes of the state carried into it. The chain is the same for
all: S_in of the first chunk is the initial state, and the last state of a chunk is S_in
of the next, through `store`.

Arrays are [C, chunks, lanes], position in the chunk first; the last chunk is filled up
with steps of log decay 0, decay 1 and drive 0.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array

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


def inherited_and_own(arithmetic: Arithmetic, sums: Array, own: Array) -> StatesFrom:
    """exp(c_t) S_in + own_t, for the forms that add the carried state last."""
    decay = arithmetic.exp(sums)

    def states_from(chunks: Chunks, carried: Array) -> Array:
        inherited = arithmetic.mul(decay[:, chunks], carried)
        return arithmetic.add(inherited, own[:, chunks])

    return states_from
