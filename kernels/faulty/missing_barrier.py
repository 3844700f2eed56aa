"""Planted bug: now and then the last chunk reads its carry before it is written.

The race is imitated by a count of calls, so that any three calls in a row disagree: in
every third one the last chunk finds the state that entered the chunk before it.
"""

from itertools import count

from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import (
    add_carries,
    chain_carries,
    scan_chunks,
)

CALLS = count(1)


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h, wrong in the last chunk of every third call, and a right final state."""
    local = scan_chunks(decay, drive)
    *entering, final_state = chain_carries(local.totals, initial_state)
    too_early = next(CALLS) % 3 == 0
    if too_early and len(entering) > 1:
        entering[-1] = entering[-2]
    return add_carries(local, entering, decay.shape[1]), final_state
