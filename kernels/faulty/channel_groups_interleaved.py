"""Planted bug: channel d reads the keys of group d % G instead of d // (D / G)."""

from torch import Tensor

from scancheck.kernels.faulty.calling_form import Form, Given


def given(tensors: Given) -> Given:
    """The tensors of the call, B and C given per channel where they have groups."""
    channels = tensors["u"].shape[1]
    return tensors | {
        name: interleaved(tensors[name], channels)
        for name in ("B", "C")
        if tensors[name].ndim == 4
    }


def interleaved(keys: Tensor, channels: int) -> Tensor:
    """[B, G, N, L] as [B, D, N, L], groups taken in turn."""
    return keys.repeat(1, channels // keys.shape[1], 1, 1)


FORM = Form(given=given)
