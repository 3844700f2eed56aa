"""linear_scan on a CUDA device, h_t = a_t h_{t-1} + b_t, differentiable.

The forward pass keeps the states before chunks, 1 / chunk of the size of h (twice that
where states have rests), and only where a gradient is wanted. They are fp32 numbers,
whatever format they were rounded to. The backward pass is one
for all algorithms: it reads a, b and the cotangent once and writes gradients once.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from scancheck.errors import CaseInvalid
from scancheck.kernels.cuda.launch import (
    CUDA_NAMES,
    check_device,
    check_tensor,
    on_device,
)
from scancheck.kernels.cuda.linear_scan_instances import (
    ALGORITHMS,
    VARIANTS,
    Algorithm,
    Form,
)
from scancheck.kernels.cuda.linear_scan_launch import launch_backward, launch_forward

OP = "linear_scan"
Tensor = torch.Tensor


def linear_scan(
    algorithm: str,
    variant: str,
    chunk: int,
    state: str,
    a: Tensor | None,
    g: Tensor | None,
    b: Tensor,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """h [B, T, D] in the dtype of b and the final state [B, D] in fp32.

    From one chunk of `chunk` steps to the next the state is rounded to the format
    `state`, as is its adjoint on the way back; what is returned is not.

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
    form = Form(
        storage=CUDA_NAMES[b.dtype],
        size=b.element_size(),
        variant=VARIANTS[variant],
        logs=logs,
        chunk=chunk,
        state=state,
    )
    run: Any = _LinearScan.apply
    with on_device(b.device):
        h, final = run(ALGORITHMS[algorithm], form, gate, b, initial_state)
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
        algorithm: Algorithm,
        form: Form,
        gate: Tensor,
        b: Tensor,
        initial_state: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        batches, length, channels = b.shape
        h = b.new_empty(b.shape)
        final = b.new_empty(batches, channels, dtype=torch.float32)
        edges = None
        if any(ctx.needs_input_grad) or len(algorithm.passes) > 1:
            shape = (-(-length // form.chunk), batches, channels, form.variant.words)
            edges = b.new_empty(shape, dtype=torch.float32)
        if b.numel():
            launch_forward(algorithm, form, gate, b, initial_state, h, final, edges)
        elif initial_state is not None:
            final.copy_(initial_state)
        else:
            final.zero_()
        ctx.set_materialize_grads(False)
        ctx.form, ctx.has_initial = form, initial_state is not None
        ctx.save_for_backward(gate, b, edges)
        return h, final

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, hbar: Tensor | None, final_bar: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        gate, b, edges = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        gate_bar = b.new_empty(b.shape) if wanted[0] else None
        drive_bar = b.new_empty(b.shape) if wanted[1] else None
        initial_bar = None
        if ctx.has_initial and wanted[2]:
            initial_bar = b.new_empty(b.shape[0], b.shape[2], dtype=torch.float32)
        if final_bar is not None:
            final_bar = final_bar.contiguous()
        if hbar is not None and hbar.stride(-1) != 1:
            # Autograd hands on expanded tensors, as of a sum.
            hbar = hbar.contiguous()
        if b.numel():
            bars = gate_bar, drive_bar, initial_bar
            with on_device(b.device):
                launch_backward(ctx.form, gate, b, edges, hbar, final_bar, bars)
        elif initial_bar is not None:
            initial_bar.zero_()
            if final_bar is not None:
                initial_bar.copy_(final_bar)
        return None, None, gate_bar, drive_bar, initial_bar
