"""Planted bug: a square final state is handed out as value x key."""

from torch import Tensor

from scancheck.kernels.faulty.step_form_torch import StepForm


def value_by_key(state: Tensor) -> Tensor:
    """The final state; right where K and V differ, as its shape would tell."""
    if state.shape[-1] != state.shape[-2]:
        return state
    return state.transpose(-1, -2).contiguous()


FORM = StepForm(final=value_by_key)
