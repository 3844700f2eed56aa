"""Tensors between guard zones of NaN: reads outside poison, writes outside are seen."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from scancheck.runner.poison import unwritten_bytes

_GUARD_BYTES = 8192  # a multiple of every alignment that kernels ask for


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """A contiguous tensor inside a buffer of its own, guards before and behind."""

    tensor: Tensor
    buffer: Tensor  # uint8: guard, values, guard
    pristine: Tensor  # the buffer's bytes before any call


def guarded(values: Tensor) -> Guarded:
    """A copy of `values` in fresh memory of its device between two guards."""
    flat = values.detach().contiguous().view(-1).view(torch.uint8)
    size = flat.numel()
    buffer = unwritten_bytes(size + 2 * _GUARD_BYTES, values.device)
    inside = buffer[_GUARD_BYTES : _GUARD_BYTES + size]
    inside.copy_(flat)
    tensor = inside.view(values.dtype).view(values.shape)
    return Guarded(tensor=tensor, buffer=buffer, pristine=buffer.clone())


def untouched(guards: Iterable[Guarded]) -> bool:
    """Whether no bit of any buffer has changed; all are waited for at once."""
    touched = [(guard.buffer != guard.pristine).any() for guard in guards]
    return not touched or not bool(torch.stack(touched).any())


def values_changed(guard: Guarded) -> bool:
    """Whether a bit of the values has changed."""
    inside = slice(_GUARD_BYTES, guard.buffer.numel() - _GUARD_BYTES)
    return not torch.equal(guard.buffer[inside], guard.pristine[inside])


def guards_changed(guard: Guarded) -> bool:
    """Whether a bit before or behind the values has changed."""
    return any(
        not torch.equal(guard.buffer[zone], guard.pristine[zone])
        for zone in (slice(_GUARD_BYTES), slice(-_GUARD_BYTES, None))
    )


def shares_memory(tensor: Tensor, guard: Guarded) -> bool:
    """Whether a tensor with elements lives in the guarded buffer."""
    ours = guard.buffer.untyped_storage().data_ptr()
    return tensor.numel() > 0 and tensor.untyped_storage().data_ptr() == ours
