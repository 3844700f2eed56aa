"""Planted bug: the carried state is read with the token's own decay already in it.

An op that reads before the update needs the sum of gates up to the token before.
"""

from torch import Tensor

from scancheck.kernels.faulty.chunk_form_torch import ChunkParts


def with_own_gate(until: Tensor, logs: Tensor) -> Tensor:
    """c_t in place of c_{t-1}."""
    return until + logs


FORM = ChunkParts(read_decay=with_own_gate)
