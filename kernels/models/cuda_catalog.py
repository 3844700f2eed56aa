"""The CPU models of the CUDA kernels, as kernels: each has the bits of its own.

The name is that of the CUDA kernel with `model.` before it. Kernels that take the
hardware's exponential have no model, and those that choose an order by themselves have
that of the order.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from scancheck.kernel import Kernel
from scancheck.kernels.cuda import catalog as cuda

if TYPE_CHECKING:
    import torch

PREFIX = "model."
_OF_FAST = {
    ("linear_scan", "fast"): "plain",
    ("linear_scan", "fast_segsum"): "segsum",
    ("selective_scan", "fast"): "reproducible",
}
"""What differs from a fast variant in its exponentials alone."""


def models() -> tuple[Kernel, ...]:
    """Every model, with the contract and the formats of its CUDA kernel."""
    return tuple(
        _model(k) for k in cuda.kernels() if model_of(k.name) == PREFIX + k.name
    )


def model_of(name: str) -> str | None:
    """The model to compare the CUDA kernel of this name with.

    Of a fast variant the one that differs in its exponentials alone; None where the
    kernel chooses its order by itself.
    """
    side, op, algorithm, variant = name.split(".")
    if algorithm == "auto":
        return None
    return PREFIX + f"{side}.{op}.{algorithm}.{_OF_FAST.get((op, variant), variant)}"


def _model(kernel: Kernel) -> Kernel:
    _, op, algorithm, variant = kernel.name.split(".")
    supports = None
    if op == "linear_scan":
        call: Any = partial(_linear_scan, algorithm, variant)
        if variant == "segsum":
            supports = ("g", "b", "initial_state")
    else:
        call = partial(_selective_scan, algorithm, variant)
    return Kernel(
        name=PREFIX + kernel.name,
        op=op,
        call=call,
        contract=kernel.contract,
        dtypes=kernel.dtypes,
        chunk=kernel.chunk,
        gradients=True,
        supports=supports,
        layouts=kernel.layouts,
        devices=("cpu",),
    )


def _linear_scan(
    algorithm: str,
    variant: str,
    *,
    a: "torch.Tensor | None" = None,
    g: "torch.Tensor | None" = None,
    b: "torch.Tensor",
    initial_state: "torch.Tensor | None" = None,
) -> "tuple[torch.Tensor, torch.Tensor]":
    from scancheck.kernels.models.cuda_linear_scan import (
        BACKWARD_ORDER,
        ORDERS,
        linear_scan,
    )

    return linear_scan(
        variant, ORDERS[algorithm], BACKWARD_ORDER, a, g, b, initial_state
    )


def _selective_scan(
    order: str,
    variant: str,
    *,
    u: "torch.Tensor",
    delta: "torch.Tensor",
    A: "torch.Tensor",
    B: "torch.Tensor",
    C: "torch.Tensor",
    D: "torch.Tensor | None" = None,
    z: "torch.Tensor | None" = None,
    delta_bias: "torch.Tensor | None" = None,
    initial_state: "torch.Tensor | None" = None,
    delta_softplus: bool = False,
) -> "tuple[torch.Tensor, torch.Tensor]":
    given = {
        "u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z,
        "delta_bias": delta_bias, "initial_state": initial_state,
    }  # fmt: skip
    tensors = {name: x for name, x in given.items() if x is not None}
    from scancheck.kernels.models.cuda_selective_scan_autograd import selective_scan

    return selective_scan(order, variant, tensors, delta_softplus)
