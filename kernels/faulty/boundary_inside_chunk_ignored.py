"""Planted bug: only sequences that begin at the edge of a chunk start anew."""

from scancheck.kernels.faulty.sequences_torch import SequenceForm


def inside_a_chunk(first: int, chunk: int) -> bool:
    """Whether a sequence goes on with the state before it; right at edges."""
    return first % chunk != 0


FORM = SequenceForm(runs_on=inside_a_chunk)
