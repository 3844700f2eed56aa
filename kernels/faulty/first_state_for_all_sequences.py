"""Planted bug: packed sequences all start from the first initial state."""

from torch import Tensor

from scancheck.kernels.faulty.sequences_torch import SequenceForm


def of_batch_row(states: Tensor, sequence: int) -> Tensor:
    """The initial state of a sequence; there is one batch row."""
    return states[:1]


FORM = SequenceForm(start=of_batch_row)
