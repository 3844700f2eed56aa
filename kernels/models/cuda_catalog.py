"""The CPU models of the CUDA kernels, as kernels: each has the bits of its own.

The name is that of the CUDA kernel with `model.` before it. Kernels that take the
hardware's exponential have no model, and those that choose an order by themselves have
that of the order.
"""

from functools import partial
from typing import TYPE_CHECKING

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
    side, op, algorithm, variant, *options = name.split(".")
    if algorithm == "auto":
        return None
    variant = _OF_FAST.get((op, variant), variant)
    return PREFIX + ".".join((side, op, algorithm, variant, *options))


def _model(kernel: Kernel) -> Kernel:
    _, op, algorithm, variant, *options = kernel.name.split(".")
    state = options[0].removeprefix("state_") if options else "fp32"
    call = _linear_scan if op == "linear_scan" else _selective_scan
    logs = op == "linear_scan" and variant == "segsum"
    return Kernel(
        name=PREFIX + kernel.name,
        op=op,
        call=partial(call, algorithm, variant, state),
        contract=kernel.contract,
        dtypes=kernel.dtypes,
        chunk=kernel.chunk,
        gradients=True,
        supports=("g", "b", "initial_state") if logs else None,
        layouts=kernel.layouts,
        devices=("cpu",),
    )


def _linear_scan(
    algorithm: str,
    variant: str,
    state: str,
    *,
    a: "torch.Tensor | None" = None,
    g: "torch.Tensor | None" = None,
    b: "torch.Tensor",
    initial_state: "torch.Tensor | None" = None,
) -> "tuple[torch.Tensor, torch.Tensor]":
    from scancheck.kernels.models.cuda_linear_scan import linear_scan
    from scancheck.kernels.models.of_cuda_kernels import linear_scan_orders

    orders = linear_scan_orders(algorithm)
    return linear_scan(variant, *orders, a, g, b, initial_state, state=state)


def _selective_scan(
    order: str,
    variant: str,
    state: str,
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
    from scancheck.kernels.models.cuda_selective_scan_autograd import differentiable

    return differentiable(order, variant, state, tensors, delta_softplus)
