"""Planted bug: a_t is read against the state after its decay."""

from torch import Tensor

from scancheck.kernels.faulty.rwkv_form_torch import RwkvForm


def decayed_first(state: Tensor, decayed: Tensor) -> Tensor:
    """The state that a_t is read against; right where nothing decays."""
    return decayed


FORM = RwkvForm(seen_from=decayed_first)
