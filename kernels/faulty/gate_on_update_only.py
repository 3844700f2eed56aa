"""Planted bug: the gate multiplies what a token erases and writes, not the state."""

from torch import Tensor

from scancheck.kernels.faulty.step_form_torch import StepForm, Token, outer, value


def updated(token: Token, state: Tensor) -> Tensor:
    """S_t; right where nothing decays."""
    update = outer(token.k, value(token, state))
    return state + (update if token.decay is None else token.decay * update)


FORM = StepForm(update=updated)
