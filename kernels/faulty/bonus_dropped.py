"""Planted bug: a token reads the state before its update, without its own bonus."""

from torch import Tensor

from scancheck.kernels.faulty.rwkv_form_torch import RwkvForm


def state_alone(state: Tensor, bonus: Tensor, update: Tensor) -> Tensor:
    """What is read; right where u is zero."""
    return state + 0.0 * bonus


FORM = RwkvForm(read_from=state_alone)
