"""The CUDA selective_scan on the CPU as one differentiable call.

The backward pass starts from states of the sequential order, whatever that of the
outputs, and sums in the order of the kernel that the device takes.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from scancheck.kernels.cuda import selective_scan_backward_instances
from scancheck.kernels.cuda.selective_scan_instances import Problem, chosen
from scancheck.kernels.cuda.selective_scan_problem import DTYPES, NAMES, problem_of
from scancheck.kernels.models import cuda_selective_scan as forward
from scancheck.kernels.models.cuda_selective_scan_backward import Order, backward

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What of a device the choice of a kernel, and so the order of sums, depends on."""

    shared: int = 232_448  # bytes of shared memory per block; an H200's
    multiprocessors: int = 132


H200 = Device()


def selective_scan(
    order: str,
    variant: str,
    tensors: Tensors,
    delta_softplus: bool,
    device: Device = H200,
    *,
    state: str = "fp32",
) -> tuple[torch.Tensor, torch.Tensor]:
    """y [B, D, L] and the last state [B, D, N], with gradients to `tensors`.

    `order` is sequential, time or auto, `variant` reproducible, tabulated or accurate;
    tensors by name; `state` is the format of states that are kept. Strides and
    alignment count as on the device: they choose kernels.
    """
    run: Any = _SelectiveScan.apply
    how = order, variant, delta_softplus, device, state, tuple(tensors)
    y, last = run(how, *tensors.values())
    return y, last


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, how: Any, *given: torch.Tensor) -> Any:
        order, variant, delta_softplus, device, state, names = how
        tensors: Any = dict(zip(names, given, strict=True))
        problem = replace(
            problem_of({name: tensors.get(name) for name in NAMES}, device.shared),
            multiprocessors=device.multiprocessors,
            state=state,
        )
        if order == "auto":
            order = chosen(problem, DTYPES[tensors["u"].dtype], variant).order
        ctx.how = variant, delta_softplus, problem, names
        ctx.save_for_backward(*given)
        ctx.set_materialize_grads(False)
        return forward.selective_scan(
            order, variant, **tensors, delta_softplus=delta_softplus, state=state
        )

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, y_bar: torch.Tensor | None, last_bar: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        variant, delta_softplus, problem, names = ctx.how
        tensors = dict(zip(names, ctx.saved_tensors, strict=True))
        u = tensors["u"]
        order = backward_order(problem, DTYPES[u.dtype], variant)
        scanned = {name: x for name, x in tensors.items() if name not in ("D", "z")}
        found = backward(
            order,
            forward.kept_states(
                variant,
                order.edge_steps,
                **scanned,
                delta_softplus=delta_softplus,
                state=problem.state,
            ),
            tensors,
            delta_softplus,
            torch.zeros_like(u) if y_bar is None else y_bar,
            last_bar,
            tabulated=variant == "tabulated",
        )
        return None, *(found[name] for name in names)


def backward_order(problem: Problem, dtype: str, variant: str) -> Order:
    """The order of the backward kernel that is chosen for a problem."""
    instance = selective_scan_backward_instances.chosen(problem, dtype, variant)
    rows = "rows" in instance.expression
    return Order(
        rows=rows,
        edge_steps=instance.edge_steps,
        lanes=4 if rows else 128 // instance.channels,
        warps=instance.threads // 32,
    )
