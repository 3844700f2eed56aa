"""What a reproducible CUDA kernel gives, by its name, from its CPU model."""

from collections.abc import Sequence
from dataclasses import dataclass
from string import digits

import torch

from scancheck.kernels.models import cuda_linear_scan
from scancheck.kernels.models.cuda_selective_scan_autograd import (
    H200,
    Device,
    selective_scan,
)

Tensors = dict[str, torch.Tensor]

_WHOLE = {2: torch.int16, 4: torch.int32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Outputs and gradients by name."""

    outputs: Tensors
    gradients: Tensors

    def tensors(self) -> Tensors:
        """Both, gradients as d and the name of their input."""
        return self.outputs | {f"d {k}": x for k, x in self.gradients.items()}


def is_reproducible(name: str) -> bool:
    """Whether the CUDA kernel of that name has a model."""
    return not name.split(".")[3].startswith("fast")


def results(
    name: str,
    inputs: Tensors,
    cotangents: Sequence[torch.Tensor],
    *,
    delta_softplus: bool = False,
    device: Device = H200,
) -> Results:
    """Outputs and gradients of the kernel `cuda.OP.ORDER.VARIANT...` on CPU tensors.

    `cotangents` are those of both outputs. Strides and alignment of the inputs count
    as on the device: they choose kernels.
    """
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    found = outputs(name, leaves, delta_softplus=delta_softplus, device=device)
    gradients = torch.autograd.grad(
        list(found.values()), list(leaves.values()), list(cotangents)
    )
    return Results(
        outputs={name: x.detach() for name, x in found.items()},
        gradients=dict(zip(leaves, gradients, strict=True)),
    )


def outputs(
    name: str, tensors: Tensors, *, delta_softplus: bool = False, device: Device = H200
) -> Tensors:
    """Outputs of the kernel, differentiable; see `results`."""
    _, op, order, variant, *options = name.split(".")
    state = options[0].removeprefix("state_") if options else "fp32"
    if op == "selective_scan":
        y, last = selective_scan(
            order, variant, tensors, delta_softplus, device, state=state
        )
        return {"y": y, "last_state": last}
    algorithm = order.rstrip(digits)
    orders = cuda_linear_scan.ORDERS[algorithm], cuda_linear_scan.BACKWARD_ORDER
    if chunk := order.removeprefix(algorithm):
        orders = cuda_linear_scan.single_pass(int(chunk))
    h, final = cuda_linear_scan.linear_scan(
        variant,
        *orders,
        tensors.get("a"),
        tensors.get("g"),
        tensors["b"],
        tensors.get("initial_state"),
        state=state,
    )
    return {"h": h, "final_state": final}


def different(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Where bits differ, on the CPU; a NaN equals any other.

    Raises ValueError for other dtypes or shapes.
    """
    got, expected = got.detach().cpu(), expected.detach().cpu()
    if got.dtype != expected.dtype or got.shape != expected.shape:
        raise ValueError(
            f"expected {expected.dtype} {list(expected.shape)}; "
            f"got {got.dtype} {list(got.shape)}"
        )
    whole = _WHOLE[got.element_size()]
    same = got.contiguous().view(whole) == expected.contiguous().view(whole)
    return ~(same | (got.isnan() & expected.isnan()))
