"""Planted bug: the carried state is decayed at a chunk's start before it is read.

The sums of gates begin with the first token's own already.
"""

from torch import Tensor

from scancheck.kernels.faulty.chunk_form_torch import ChunkParts


def from_before_the_chunk(until: Tensor, logs: Tensor) -> Tensor:
    """The first gate of the chunk once more."""
    return until + logs[..., :1, :]


FORM = ChunkParts(read_decay=from_before_the_chunk)
