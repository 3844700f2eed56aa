"""linear_scan on a CUDA device: h_t = a_t h_{t-1} + b_t in one pass over the data."""

import torch

from scancheck.errors import CaseInvalid
from scancheck.kernels.cuda.compile import function
from scancheck.kernels.cuda.launch import (
    CUDA_NAMES,
    aligned,
    check_device,
    check_tensor,
    launch,
    on_device,
    pointer,
)
from scancheck.kernels.cuda.linear_scan_instances import (
    ORDERS,
    SOURCE,
    WORDS,
    instance,
    tile_for,
)
from scancheck.kernels.cuda.workspace import workspace

OP = "linear_scan"


def linear_scan(
    variant: str,
    chunk: int,
    a: torch.Tensor,
    b: torch.Tensor,
    initial_state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """h [B, T, D] in the dtype of b and the final state [B, D] in fp32.

    The last axis of a and b is contiguous; other strides are free. Raises CaseInvalid
    for tensors that it does not take, before anything runs.
    """
    device = _checked(a, b, initial_state)
    with on_device(device):
        h = torch.empty_like(b, memory_format=torch.contiguous_format)
        if b.numel() == 0:
            return h, _initial(b, initial_state)
        final = b.new_empty(b.shape[0], b.shape[2], dtype=torch.float32)
        _forward(variant, chunk, a, b, initial_state, h, final, None)
        return h, final


def _checked(
    a: torch.Tensor, b: torch.Tensor, initial_state: torch.Tensor | None
) -> torch.device:
    device = check_device(OP, {"b": b, "a": a, "initial_state": initial_state})
    if b.ndim != 3:
        raise CaseInvalid(f"{OP} b: expected [B, T, D]; got shape {list(b.shape)}")
    check_tensor(OP, "b", b)
    check_tensor(OP, "a", a, shape=b.shape, dtypes=(b.dtype,))
    if initial_state is not None:
        check_tensor(
            OP,
            "initial_state",
            initial_state,
            shape=(b.shape[0], b.shape[2]),
            dtypes=(torch.float32,),
        )
    return device


def _initial(b: torch.Tensor, initial_state: torch.Tensor | None) -> torch.Tensor:
    if initial_state is not None:
        return initial_state.clone()
    return b.new_zeros(b.shape[0], b.shape[2], dtype=torch.float32)


def _forward(
    variant: str,
    chunk: int,
    a: torch.Tensor,
    b: torch.Tensor,
    initial_state: torch.Tensor | None,
    h: torch.Tensor,
    final: torch.Tensor,
    edges: torch.Tensor | None,
) -> None:
    batches, length, channels = b.shape
    tile = tile_for(b.element_size(), chunk, lambda count: aligned(count, a, b, h))
    rows, _ = ORDERS[chunk]
    chunks = -(-length // chunk)
    words = workspace(WORDS[variant] * (chunks - 1) * batches * channels)
    if initial_state is not None:
        initial_state = initial_state.contiguous()
    launch(
        function(SOURCE, instance(CUDA_NAMES[b.dtype], variant, chunk, tile)),
        -(-channels // (tile.count * tile.lanes)) * batches * chunks,
        (tile.lanes, rows),
        (
            *(pointer(x) for x in (a, b, initial_state, h, final, edges, words)),
            batches,
            length,
            channels,
            *a.stride()[:2],
            *b.stride()[:2],
        ),
    )
