"""The CUDA selective_scan on the CPU as one differentiable call, forward and backward.

The states that the backward pass starts from are those of the sequential order, as on
the device, whatever the order of the outputs.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from scancheck.kernels.models.cuda_selective_scan import kept_states, selective_scan
from scancheck.kernels.models.cuda_selective_scan_backward import Order, backward

NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state")
Tensors = dict[str, torch.Tensor | None]


def differentiable(
    order: str,
    variant: str,
    backward_order: Order,
    tensors: Tensors,
    delta_softplus: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """y and the last state, as `selective_scan`, with gradients to `tensors`.

    `variant` is reproducible or accurate: the backward pass has the functions of both.
    """
    run: Any = _SelectiveScan.apply
    how = order, variant, backward_order, delta_softplus
    y, last_state = run(how, *(tensors.get(name) for name in NAMES))
    return y, last_state


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, how: tuple[str, str, Order, bool], *given: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        order, variant, _, softplus = how
        ctx.how = how
        ctx.save_for_backward(*given)
        ctx.set_materialize_grads(False)
        tensors: Any = dict(zip(NAMES, given, strict=True))
        return selective_scan(order, variant, **tensors, delta_softplus=softplus)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, y_bar: torch.Tensor | None, last_bar: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        _, variant, order, softplus = ctx.how
        saved = zip(NAMES, ctx.saved_tensors, strict=True)
        tensors: dict[str, Any] = {name: x for name, x in saved if x is not None}
        u = tensors["u"]
        scanned = {name: x for name, x in tensors.items() if name not in ("D", "z")}
        edges = kept_states(
            variant, order.edge_steps, **scanned, delta_softplus=softplus
        )
        y_bar = torch.zeros_like(u) if y_bar is None else y_bar
        found = backward(order, edges, tensors, softplus, y_bar, last_bar)
        return None, *(found[name] if name in tensors else None for name in NAMES)
