"""Planted bug: value head j reads key head j % H instead of j // (HV / H)."""

from torch import Tensor

from scancheck.kernels.faulty.step_form_torch import StepForm


def taken_in_turn(x: Tensor, heads: int) -> Tensor:
    """[B, T, H, K] -> [B, T, heads, K]; right where each head has its own keys."""
    return x.repeat(1, 1, heads // x.shape[2], 1)


FORM = StepForm(spread=taken_in_turn)
