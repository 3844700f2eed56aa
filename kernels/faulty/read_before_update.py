"""Planted bug: each token reads the state that the token before left."""

from torch import Tensor

from scancheck.kernels.faulty.step_form_torch import StepForm


def before(before_update: Tensor, after_update: Tensor) -> Tensor:
    """The state that a token reads; right where it writes nothing."""
    return before_update


FORM = StepForm(read_from=before)
