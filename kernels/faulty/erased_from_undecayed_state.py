"""Planted bug: the delta rule's error is taken against the state before its decay."""

from torch import Tensor

from scancheck.kernels.faulty.step_form_torch import (
    StepForm,
    Token,
    decayed,
    outer,
    value,
)


def updated(token: Token, state: Tensor) -> Tensor:
    """S_t; right where nothing decays or the state is zero."""
    return decayed(token, state) + outer(token.k, value(token, state))


FORM = StepForm(update=updated)
