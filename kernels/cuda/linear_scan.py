"""linear_scan on a CUDA device, h_t = a_t h_{t-1} + b_t in one pass, differentiable.

The forward pass keeps the states before chunks, 1 / chunk of the size of h (twice that
where states have rests), and only where a gradient is wanted. The backward pass reads
a, b and the cotangent once and writes the gradients once.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

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
    BACKWARD,
    FORWARD,
    ORDERS,
    VARIANTS,
    instance,
    tile_for,
)
from scancheck.kernels.cuda.workspace import workspace

OP = "linear_scan"
Tensor = torch.Tensor


def linear_scan(
    variant: str,
    chunk: int,
    a: Tensor | None,
    g: Tensor | None,
    b: Tensor,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """h [B, T, D] in the dtype of b and the final state [B, D] in fp32.

    One of a and g = log a is given. The last axis of it and of b is contiguous; other
    strides are free. Raises CaseInvalid for tensors that it does not take, before
    anything runs.
    """
    if (a is None) == (g is None):
        got = "neither" if a is None else "both"
        raise CaseInvalid(f"{OP}: expected one of a and g; got {got}")
    logs = a is None
    gate = g if a is None else a
    assert gate is not None
    _check("g" if logs else "a", gate, b, initial_state)
    if initial_state is not None:
        initial_state = initial_state.contiguous()
    run: Any = _LinearScan.apply
    with on_device(b.device):
        h, final = run(variant, chunk, logs, gate, b, initial_state)
    return h, final


def _check(name: str, gate: Tensor, b: Tensor, initial_state: Tensor | None) -> None:
    check_device(OP, {"b": b, name: gate, "initial_state": initial_state})
    if b.ndim != 3:
        raise CaseInvalid(f"{OP} b: expected [B, T, D]; got shape {list(b.shape)}")
    check_tensor(OP, "b", b)
    check_tensor(OP, name, gate, shape=b.shape, dtypes=(b.dtype,))
    if initial_state is not None:
        state = (b.shape[0], b.shape[2])
        check_tensor(
            OP, "initial_state", initial_state, shape=state, dtypes=(torch.float32,)
        )


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        variant: str,
        chunk: int,
        logs: bool,
        gate: Tensor,
        b: Tensor,
        initial_state: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        batches, length, channels = b.shape
        h = b.new_empty(b.shape)
        if b.numel() == 0:
            final = b.new_zeros(batches, channels, dtype=torch.float32)
            if initial_state is not None:
                final.copy_(initial_state)
        else:
            final = b.new_empty(batches, channels, dtype=torch.float32)
        edges = None
        if any(ctx.needs_input_grad):
            shape = (-(-length // chunk), batches, channels, VARIANTS[variant].words)
            edges = b.new_empty(shape, dtype=torch.float32)
        ctx.set_materialize_grads(False)
        ctx.how = variant, chunk, logs, initial_state is not None
        ctx.save_for_backward(gate, b, edges)
        if b.numel():
            _run(
                FORWARD,
                (variant, chunk, logs),
                (gate, b),
                (gate, b, initial_state, h, final, edges),
            )
        return h, final

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, hbar: Tensor | None, final_bar: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        gate, b, edges = ctx.saved_tensors
        variant, chunk, logs, has_initial = ctx.how
        wanted = ctx.needs_input_grad[3:]
        gate_bar = b.new_empty(b.shape) if wanted[0] else None
        drive_bar = b.new_empty(b.shape) if wanted[1] else None
        initial_bar = None
        if has_initial and wanted[2]:
            initial_bar = b.new_empty(b.shape[0], b.shape[2], dtype=torch.float32)
        if final_bar is not None:
            final_bar = final_bar.contiguous()
        if hbar is not None and hbar.stride(-1) != 1:
            # Autograd hands on expanded tensors, as of a sum.
            hbar = hbar.contiguous()
        if b.numel():
            with on_device(b.device):
                _run(
                    BACKWARD,
                    (variant, chunk, logs),
                    (gate, b, hbar),
                    (gate, b, edges, hbar, final_bar, gate_bar, drive_bar, initial_bar),
                )
        elif initial_bar is not None:
            initial_bar.zero_()
            if final_bar is not None:
                initial_bar.copy_(final_bar)
        return None, None, None, gate_bar, drive_bar, initial_bar


def _run(
    source: str,
    how: tuple[str, int, bool],
    strided: tuple[Tensor | None, ...],
    tensors: tuple[Tensor | None, ...],
) -> None:
    """Launches the instance for these tensors; those `strided` come with strides."""
    variant, chunk, logs = how
    gate, b, *_ = tensors
    assert gate is not None and b is not None
    batches, length, channels = b.shape
    chunks = -(-length // chunk)
    tile = tile_for(
        source, b.element_size(), chunk, lambda count: aligned(count, *strided)
    )
    expression = instance(
        source,
        CUDA_NAMES[b.dtype],
        VARIANTS[variant],
        logs=logs,
        chunk=chunk,
        tile=tile,
    )
    words = VARIANTS[variant].words * (chunks - 1) * batches * channels
    strides = [s for x in strided for s in ((0, 0) if x is None else x.stride()[:2])]
    launch(
        function(source, expression),
        -(-channels // (tile.count * tile.lanes)) * batches * chunks,
        (tile.lanes, ORDERS[chunk][0]),
        (
            *map(pointer, tensors),
            pointer(workspace(words)),
            *b.shape,
            *strides,
        ),
    )
