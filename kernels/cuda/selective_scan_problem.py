"""What selective_scan on a CUDA device takes: checks of its tensors, and strides."""

import torch

from scancheck.errors import CaseInvalid
from scancheck.kernels.cuda.launch import CUDA_NAMES, aligned, check_tensor
from scancheck.kernels.cuda.selective_scan_instances import (
    BYTES,
    LARGEST_STATES,
    LARGEST_STEPS,
    STORAGE,
    Problem,
)

OP = "selective_scan"

NAMES = ("u", "delta", "z", "B", "C", "A", "D", "delta_bias", "initial_state")
"""Tensors of a call, in the order of the pointers that kernels take."""

_DTYPES = {name: dtype for dtype, name in CUDA_NAMES.items()}
DTYPES = {_DTYPES[source]: name for name, source in STORAGE.items()}
"""Names of the storage formats by torch dtype."""


def problem_of(tensors: dict[str, torch.Tensor | None], shared: int) -> Problem:
    """The problem of these tensors on a device with so much shared memory per block.

    Raises CaseInvalid for shapes and dtypes that do not fit.
    """
    u, delta, A, B, C = (tensors[name] for name in ("u", "delta", "A", "B", "C"))
    assert u is not None and delta is not None
    assert A is not None and B is not None and C is not None
    if u.ndim != 3:
        raise CaseInvalid(f"{OP} u: expected [B, D, L]; got shape {list(u.shape)}")
    batch, channels, steps = u.shape
    if steps > LARGEST_STEPS:
        raise CaseInvalid(f"{OP} u: expected L up to {LARGEST_STEPS}; got {steps}")
    check_tensor(OP, "u", u)
    own, fp32 = (u.dtype,), (torch.float32,)
    check_tensor(OP, "delta", delta, shape=u.shape, dtypes=own)
    if A.ndim != 2 or not 1 <= A.shape[1] <= LARGEST_STATES:
        raise CaseInvalid(
            f"{OP} A: expected [D, N] with N from 1 to {LARGEST_STATES}; "
            f"got shape {list(A.shape)}"
        )
    states = A.shape[1]
    check_tensor(OP, "A", A, shape=(channels, states), dtypes=fp32)
    told = (_groups(name, tensors[name], channels) for name in ("B", "C"))
    groups = {count for count in told if count is not None}
    if len(groups) > 1:
        raise CaseInvalid(
            f"{OP} C: expected as many groups as B has; got {C.shape[1]}, "
            f"and B has {B.shape[1]}"
        )
    group_count = groups.pop() if groups else 1
    for name, keys in (("B", B), ("C", C)):
        shapes = {
            2: (channels, states),
            3: (batch, states, steps),
            4: (batch, group_count, states, steps),
        }
        dtypes = fp32 if keys.ndim == 2 else own
        check_tensor(OP, name, keys, shape=shapes[keys.ndim], dtypes=dtypes)
    optional = {
        "D": ((channels,), fp32),
        "z": (tuple(u.shape), own),
        "delta_bias": ((channels,), fp32),
        "initial_state": ((batch, channels, states), fp32),
    }
    for name, (shape, dtypes) in optional.items():
        if (tensor := tensors[name]) is not None:
            check_tensor(OP, name, tensor, shape=shape, dtypes=dtypes)
    vector = 16 // BYTES[DTYPES[u.dtype]]
    keys_in_storage = [x for x in (B, C) if x.ndim > 2]
    return Problem(
        batch=batch,
        channels=channels,
        steps=steps,
        states=states,
        groups=group_count,
        constant_b=B.ndim == 2,
        constant_c=C.ndim == 2,
        aligned=aligned(vector, u, delta, tensors["z"], *keys_in_storage),
        shared=shared,
    )


def _groups(name: str, keys: torch.Tensor | None, channels: int) -> int | None:
    """G of B or C; None where it is constant. Raises CaseInvalid for other layouts."""
    assert keys is not None
    if keys.ndim not in (2, 3, 4):
        raise CaseInvalid(
            f"{OP} {name}: expected [B, N, L], [B, G, N, L] or [D, N]; "
            f"got shape {list(keys.shape)}"
        )
    if keys.ndim == 2:
        return None
    groups = 1 if keys.ndim == 3 else keys.shape[1]
    if groups < 1 or channels % groups:
        raise CaseInvalid(
            f"{OP} {name}: expected groups that divide {channels} channels; "
            f"got {groups}"
        )
    return groups


def strides(tensor: torch.Tensor | None, count: int) -> tuple[int, ...]:
    """Of the first axes, in elements; zeros for None."""
    return (0,) * count if tensor is None else tuple(tensor.stride()[:count])


def key_strides(tensor: torch.Tensor | None) -> tuple[int, ...]:
    """Of B or C by batch, group and state; of a constant one 0, 0 and by channel."""
    assert tensor is not None
    match tensor.stride():
        case (channel, _):
            return 0, 0, channel
        case (batch, state, _):
            return batch, 0, state
        case axes:
            return axes[:3]
