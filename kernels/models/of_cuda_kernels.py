"""What a reproducible CUDA kernel gives, by its name, from its CPU model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import digits

import torch

from scancheck.kernels.cuda import selective_scan_backward_instances
from scancheck.kernels.cuda.selective_scan import DTYPES, problem_of
from scancheck.kernels.cuda.selective_scan_instances import Problem, chosen
from scancheck.kernels.models import cuda_linear_scan, cuda_selective_scan
from scancheck.kernels.models.cuda_selective_scan_backward import Order, backward

Tensors = dict[str, torch.Tensor]

NAMES = ("u", "delta", "z", "B", "C", "A", "D", "delta_bias", "initial_state")
"""Tensors of selective_scan."""

_WHOLE = {2: torch.int16, 4: torch.int32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What of a device the choice of a kernel, and so the order of sums, depends on."""

    shared: int = 232_448  # bytes of shared memory per block; an H200's
    multiprocessors: int = 132


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
    device: Device = Device(),
) -> Results:
    """Outputs and gradients of the kernel `cuda.OP.ORDER.VARIANT...` on CPU tensors.

    `cotangents` are those of both outputs. Strides and alignment of the inputs count
    as on the device: they choose kernels.
    """
    _, op, order, variant, *options = name.split(".")
    state = options[0].removeprefix("state_") if options else "fp32"
    if op == "linear_scan":
        return _linear_scan(order, variant, state, inputs, cotangents)
    how = order, variant, state
    return _selective_scan(*how, inputs, cotangents, delta_softplus, device)


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


def linear_scan_orders(
    order: str,
) -> tuple[cuda_linear_scan.Order, cuda_linear_scan.Order]:
    """Those of both passes by the kernel's name for them, with its chunk size."""
    algorithm = order.rstrip(digits)
    if chunk := order.removeprefix(algorithm):
        return cuda_linear_scan.single_pass(int(chunk))
    return cuda_linear_scan.ORDERS[algorithm], cuda_linear_scan.BACKWARD_ORDER


def _linear_scan(
    order: str,
    variant: str,
    state: str,
    inputs: Tensors,
    cotangents: Sequence[torch.Tensor],
) -> Results:
    orders = linear_scan_orders(order)
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    outputs = cuda_linear_scan.linear_scan(
        variant,
        *orders,
        leaves.get("a"),
        leaves.get("g"),
        leaves["b"],
        leaves.get("initial_state"),
        state=state,
    )
    found = torch.autograd.grad(outputs, list(leaves.values()), list(cotangents))
    h, final = (x.detach() for x in outputs)
    return Results(
        outputs={"h": h, "final_state": final},
        gradients=dict(zip(leaves, found, strict=True)),
    )


def _selective_scan(
    order: str,
    variant: str,
    state: str,
    inputs: Tensors,
    cotangents: Sequence[torch.Tensor],
    delta_softplus: bool,
    device: Device,
) -> Results:
    dtype = DTYPES[inputs["u"].dtype]
    problem = replace(
        problem_of({name: inputs.get(name) for name in NAMES}, device.shared),
        multiprocessors=device.multiprocessors,
        state=state,
    )
    if order == "auto":
        order = chosen(problem, dtype, variant).order
    y, last = cuda_selective_scan.selective_scan(
        order, variant, **inputs, delta_softplus=delta_softplus, state=state
    )
    gradients = selective_scan_gradients(
        variant, problem, inputs, cotangents, delta_softplus
    )
    return Results(outputs={"y": y, "last_state": last}, gradients=gradients)


def selective_scan_gradients(
    variant: str,
    problem: Problem,
    inputs: Tensors,
    cotangents: Sequence[torch.Tensor],
    delta_softplus: bool,
) -> Tensors:
    """Those of each input, in either order: both start from the sequential states."""
    instance = selective_scan_backward_instances.chosen(
        problem, DTYPES[inputs["u"].dtype], variant
    )
    rows = "rows" in instance.expression
    order = Order(
        rows=rows,
        edge_steps=instance.edge_steps,
        lanes=4 if rows else 128 // instance.channels,
        warps=instance.threads // 32,
    )
    scanned = {name: x for name, x in inputs.items() if name not in ("D", "z")}
    edges = cuda_selective_scan.kept_states(
        variant,
        order.edge_steps,
        **scanned,
        delta_softplus=delta_softplus,
        state=problem.state,
    )
    found = backward(
        order,
        edges,
        inputs,
        delta_softplus,
        *cotangents,
        tabulated=variant == "tabulated",
    )
    return {name: found[name] for name in inputs}
