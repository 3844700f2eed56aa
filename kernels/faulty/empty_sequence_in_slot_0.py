"""Planted bug: the slot of a sequence without tokens is 0, which is a real one."""

from scancheck.kernels.faulty.sequences_torch import SequenceForm

NO_SLOT = 0


def padded_slot(sequence: int, tokens: int) -> int:
    """The entry of the states that a sequence reads and writes."""
    return sequence if tokens else NO_SLOT


FORM = SequenceForm(entry=padded_slot)
