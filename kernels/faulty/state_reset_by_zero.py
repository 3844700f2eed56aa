"""Planted bug: a sequence resets the state by a product with 0, which NaN survives."""

from torch import Tensor

from scancheck.kernels.faulty.sequences_torch import SequenceForm


def multiplied(state: Tensor | None, before: Tensor) -> Tensor | None:
    """The initial state of a sequence; right where the one before it is finite."""
    return 0.0 * before if state is None else state + 0.0 * before


FORM = SequenceForm(follow=multiplied)
