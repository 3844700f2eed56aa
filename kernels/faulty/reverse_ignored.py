"""Planted bug: a call in reverse runs forward."""

from scancheck.kernels.faulty.sequences_torch import SequenceForm


def never(reverse: bool) -> bool:
    """Whether the recurrence runs from the last token."""
    return False


FORM = SequenceForm(backwards=never)
