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
    of = _OF_FAST.get((op, variant), variant)
    return PREFIX + ".".join((side, op, algorithm, of, *options))


def _model(kernel: Kernel) -> Kernel:
    linear = kernel.op == "linear_scan"
    of_logs = linear and kernel.name.endswith(".segsum")
    return Kernel(
        name=PREFIX + kernel.name,
        op=kernel.op,
        call=partial(_linear_scan if linear else _selective_scan, kernel.name),
        contract=kernel.contract,
        dtypes=kernel.dtypes,
        chunk=kernel.chunk,
        gradients=True,
        supports=("g", "b", "initial_state") if of_logs else None,
        layouts=kernel.layouts,
        devices=("cpu",),
    )


def _linear_scan(
    name: str,
    *,
    a: "torch.Tensor | None" = None,
    g: "torch.Tensor | None" = None,
    b: "torch.Tensor",
    initial_state: "torch.Tensor | None" = None,
) -> "tuple[torch.Tensor, ...]":
    return _outputs(name, a=a, g=g, b=b, initial_state=initial_state)


def _selective_scan(
    name: str,
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
) -> "tuple[torch.Tensor, ...]":
    given = {
        "u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z,
        "delta_bias": delta_bias, "initial_state": initial_state,
    }  # fmt: skip
    return _outputs(name, **given, delta_softplus=delta_softplus)


def _outputs(
    name: str, *, delta_softplus: bool = False, **given: "torch.Tensor | None"
) -> "tuple[torch.Tensor, ...]":
    from scancheck.kernels.models.of_cuda_kernels import outputs

    tensors = {of: x for of, x in given.items() if x is not None}
    return tuple(outputs(name, tensors, delta_softplus=delta_softplus).values())
