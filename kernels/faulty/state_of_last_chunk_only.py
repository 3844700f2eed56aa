"""Planted bug: a chunk starts from what the chunk before it made of a zero state."""

from torch import Tensor

from scancheck.kernels.faulty.chunk_form_torch import ChunkParts


def last_local(after: Tensor, local: Tensor) -> Tensor:
    """The chunk's own part alone: all that entered it is forgotten."""
    return local


FORM = ChunkParts(carry=last_local)
