"""Planted bug: padding is made the identity by products with 0, which NaN survives."""

from torch import Tensor

from scancheck.kernels.faulty.calling_form import Given
from scancheck.kernels.faulty.sequences_torch import Alone, SequenceForm
from scancheck.kernels.models.by_sequence import by_sequence, time_axis
from scancheck.ops.normal_form import Op


def multiplied(
    op: Op, alone: Alone, given: Given, mask: Tensor, reverse: bool
) -> tuple[Tensor, ...]:
    """Gates, keys, values and beta times the mask; right where padding is finite."""
    masked = {}
    for name, x in given.items():
        shape = (*mask.shape, *(1 for _ in x.shape[2:]))
        own = name != "q" and time_axis(op, name, x) is not None
        masked[name] = x * mask.reshape(shape) if own else x
    return by_sequence(op, alone, masked, reverse=reverse)


FORM = SequenceForm(padded=multiplied)
