"""Planted bug: padded places are computed as tokens."""

from torch import Tensor

from scancheck.kernels.faulty.calling_form import Given
from scancheck.kernels.faulty.sequences_torch import Alone, SequenceForm
from scancheck.kernels.models.by_sequence import by_sequence
from scancheck.ops.normal_form import Op


def whole_rows(
    op: Op, alone: Alone, given: Given, mask: Tensor, reverse: bool
) -> tuple[Tensor, ...]:
    """Every place of each row; right where none is padding."""
    return by_sequence(op, alone, given, reverse=reverse)


FORM = SequenceForm(padded=whole_rows)
