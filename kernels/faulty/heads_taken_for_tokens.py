"""Planted bug: tensors with as many tokens as heads are taken to have heads first."""

from torch import Tensor

from scancheck.kernels.faulty.calling_form import Given
from scancheck.kernels.faulty.chunk_form_torch import ChunkParts, Compute


def is_square(x: Tensor) -> bool:
    """Whether the axes of tokens and heads are alike."""
    return x.shape[1] == x.shape[2]


def heads_first(compute: Compute, given: Given) -> tuple[Tensor, Tensor]:
    """[B, heads, T, ...] as [B, T, heads, ...], where the shapes cannot tell."""
    if not all(is_square(given[name]) for name in ("q", "k", "v")):
        return compute(given)
    turned = {
        name: x if name == "initial_state" else x.transpose(1, 2)
        for name, x in given.items()
    }
    o, state = compute(turned)
    return o.transpose(1, 2), state


FORM = ChunkParts(around=heads_first)
