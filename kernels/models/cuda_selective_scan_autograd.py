"""The reproducible selective_scan on the CPU with its gradients, as the CUDA kernel's.

The backward pass takes the states before each few steps, and its order, from the shape,
as the kernel does on a device whose blocks have at least 96 KiB of shared memory.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from scancheck.kernels.cuda.selective_scan_backward_instances import chosen
from scancheck.kernels.cuda.selective_scan_instances import BYTES, Problem
from scancheck.kernels.models import cuda_selective_scan as forward
from scancheck.kernels.models.cuda_selective_scan_backward import Order, backward

VARIANT = "reproducible"
SHARED = 96 * 2**10
_STEP_BY_STEP = ("u", "delta", "A", "B", "C", "delta_bias")  # what states come from
_DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}

Tensors = dict[str, torch.Tensor]


def selective_scan(
    order: str, tensors: Tensors, delta_softplus: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """y [B, D, L] and the last state [B, D, N], differentiable; tensors by name."""
    run: Any = _SelectiveScan.apply
    y, last = run(order, delta_softplus, tuple(tensors), *tensors.values())
    return y, last


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        order: str,
        delta_softplus: bool,
        names: tuple[str, ...],
        *given: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.how = delta_softplus, names
        ctx.save_for_backward(*given)
        tensors: Any = dict(zip(names, given, strict=True))
        return forward.selective_scan(
            order, VARIANT, **tensors, delta_softplus=delta_softplus
        )

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, y_bar: torch.Tensor, last_bar: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        delta_softplus, names = ctx.how
        tensors = dict(zip(names, ctx.saved_tensors, strict=True))
        order = _order(tensors)
        edges = _edges(tensors, order.edge_steps, delta_softplus)
        found = backward(order, edges, tensors, delta_softplus, y_bar, last_bar)
        return None, None, None, *(found[name] for name in names)


def _order(tensors: Tensors) -> Order:
    """The order of sums that the kernel takes."""
    u, keys = tensors["u"], (tensors["B"], tensors["C"])
    dtype = _DTYPES[u.dtype]
    batch, channels, steps = u.shape
    instance = chosen(
        Problem(
            batch=batch,
            channels=channels,
            steps=steps,
            states=tensors["A"].shape[1],
            groups=max(x.shape[1] if x.ndim == 4 else 1 for x in keys),
            constant_b=keys[0].ndim == 2,
            constant_c=keys[1].ndim == 2,
            aligned=steps * BYTES[dtype] % 16 == 0,
            shared=SHARED,
        ),
        dtype,
        VARIANT,
    )
    rows = "_rows<" in instance.expression
    return Order(
        rows=rows,
        edge_steps=instance.edge_steps,
        lanes=4 if rows else instance.threads // instance.channels,
        warps=instance.threads // 32,
    )


def _edges(tensors: Tensors, steps: int, delta_softplus: bool) -> torch.Tensor:
    """The states before each `steps` steps, [B, ceil(L / steps), D, N]."""
    u, A = tensors["u"], tensors["A"]
    state = tensors.get("initial_state")
    if state is None:
        state = torch.zeros(*u.shape[:2], A.shape[1])
    used = {name: tensors[name] for name in _STEP_BY_STEP if name in tensors}
    edges = []
    for first in range(0, u.shape[2], steps):
        edges.append(state)
        part: Any = {
            name: x[..., first : first + steps] if _varies(name, x) else x
            for name, x in used.items()
        }
        _, state = forward.selective_scan(
            "sequential",
            VARIANT,
            **part,
            initial_state=state,
            delta_softplus=delta_softplus,
        )
    return torch.stack(edges, 1)


def _varies(name: str, x: torch.Tensor) -> bool:
    """Whether the last axis is time."""
    return name in ("u", "delta") or (name in ("B", "C") and x.ndim > 2)
