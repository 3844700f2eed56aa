"""selective_scan on a CUDA device: Mamba-1's scan fused with its gates."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable

from scancheck.kernels.cuda import selective_scan_backward_instances
from scancheck.kernels.cuda.compile import function_with_shared
from scancheck.kernels.cuda.launch import check_device, launch, on_device, pointer
from scancheck.kernels.cuda.selective_scan_backward import backward
from scancheck.kernels.cuda.selective_scan_instances import (
    SOURCE,
    Instance,
    Problem,
    blocks,
    check_options,
    chosen,
)
from scancheck.kernels.cuda.selective_scan_problem import (
    DTYPES,
    NAMES,
    OP,
    key_strides,
    problem_of,
    strides,
)

_Tensors = tuple[torch.Tensor | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How calls on tensors of certain layouts are launched."""

    instance: Instance
    device: torch.device
    blocks: int
    problem: Problem
    edge_steps: int  # between the states that the backward pass needs
    words: NDArray[np.int64]  # the kernel's arguments; pointers first, to be filled in


_plans: dict[Any, Plan] = {}
_MOST_PLANS = 4096


def selective_scan(
    variant: str,
    order: str | None,
    u: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    delta_softplus: bool = False,
    state: str = "fp32",
) -> tuple[torch.Tensor, torch.Tensor]:
    """y [B, D, L] in the dtype of u and the last state [B, D, N] in fp32.

    `order` is sequential, time, or None: the faster one. In the sequential order the
    state may be rounded to another format, `state`, before every STATE_STEPS steps but
    the first; its adjoint is not. The last axis of every tensor
    is contiguous; other strides are free. Raises CaseInvalid for tensors that it does
    not take, before anything runs.
    """
    tensors = (u, delta, z, B, C, A, D, delta_bias, initial_state)
    plan = plan_for(variant, order, delta_softplus, tensors, state)
    differentiable: Any = _SelectiveScan.apply
    with on_device(plan.device):
        y, last_state = differentiable(variant, plan, delta_softplus, *tensors)
    return y, last_state


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        variant: str,
        plan: Plan,
        delta_softplus: bool,
        *tensors: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        u, A = tensors[0], tensors[5]
        assert u is not None and A is not None
        y = u.new_empty(u.shape)
        if y.numel() == 0:
            last_state = _initial(u, A, tensors[-1])
        else:
            last_state = u.new_empty(*u.shape[:2], A.shape[1], dtype=torch.float32)
        edges = None
        if any(ctx.needs_input_grad) and plan.instance.order == "sequential":
            edges = room_for_edges(plan, u)
        ctx.set_materialize_grads(False)
        ctx.how = variant, delta_softplus, plan
        ctx.save_for_backward(*tensors, edges)
        if y.numel():
            run(plan, tensors, y, last_state, edges)
        return y, last_state

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, y_bar: torch.Tensor | None, last_bar: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        *tensors, edges = ctx.saved_tensors
        variant, delta_softplus, plan = ctx.how
        u = tensors[0]
        with on_device(u.device):
            if edges is None and u.numel():
                # The order in time keeps no states: the sequential one makes them.
                edges = room_for_edges(plan, u)
                again = plan_for(variant, "sequential", delta_softplus, tuple(tensors))
                run(
                    again,
                    tuple(tensors),
                    torch.empty_like(u),
                    edges.new_empty(edges[:, 0].shape),
                    edges,
                )
            named = dict(zip(NAMES, tensors, strict=True))
            gradients = backward(
                variant,
                plan.problem,
                bool(delta_softplus),
                named | {"edges": edges},
                y_bar,
                last_bar,
                dict(zip(NAMES, ctx.needs_input_grad[3:], strict=True)),
            )
        return None, None, None, *(gradients[name] for name in NAMES)


def room_for_edges(plan: Plan, u: torch.Tensor) -> torch.Tensor:
    """Room for the states before each plan.edge_steps steps."""
    problem = plan.problem
    edges = -(-problem.steps // plan.edge_steps)
    shape = problem.batch, edges, problem.channels, problem.states
    return u.new_empty(shape, dtype=torch.float32)


def plan_for(
    variant: str,
    order: str | None,
    delta_softplus: bool,
    tensors: _Tensors,
    state: str = "fp32",
) -> Plan:
    """The launch for tensors of these layouts, in the order of Plan's pointers.

    Checked once per layout. Raises CaseInvalid for tensors that do not fit.
    """
    key = (variant, order, state, bool(delta_softplus), *map(_layout, tensors))
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) == _MOST_PLANS:
            _plans.clear()
        plan = _planned(variant, order, state, delta_softplus, tensors)
        _plans[key] = plan
    return plan


def run(
    plan: Plan,
    tensors: _Tensors,
    y: torch.Tensor,
    last_state: torch.Tensor,
    edges: torch.Tensor | None,
) -> None:
    """Launches the plan on the current device, which is the plan's.

    `edges` [B, ceil(L / E), D, N] in fp32 receives the state before each
    E = plan.edge_steps steps; not in the order of time.
    """
    words = plan.words.copy()
    pointers = [pointer(x) for x in (*tensors, y, last_state, edges)]
    words[: len(pointers)] = pointers
    instance = plan.instance
    expression = instance.expression if edges is None else instance.with_edges
    assert expression is not None
    launch(
        function_with_shared(
            SOURCE,
            expression,
            instance.shared,
            torch.cuda.current_device(),
        ),
        plan.blocks,
        (plan.instance.threads,),
        (words.view(f"V{words.nbytes}"),),  # type: ignore[arg-type]
        plan.instance.shared,
    )


def _layout(tensor: torch.Tensor | None) -> Any:
    """All that checks and the choice of a kernel depend on."""
    if tensor is None:
        return None
    return (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor.data_ptr() % 16,
    )


def _planned(
    variant: str, order: str | None, state: str, delta_softplus: bool, given: _Tensors
) -> Plan:
    check_options(variant, order, state)
    tensors = dict(zip(NAMES, given, strict=True))
    device = check_device(OP, tensors)
    # Stubs of torch lack some of the properties.
    properties: Any = torch.cuda.get_device_properties(device)
    problem = replace(
        problem_of(tensors, properties.shared_memory_per_block_optin),
        multiprocessors=properties.multi_processor_count,
        state=state,
    )
    u = tensors["u"]
    assert u is not None
    instance = chosen(problem, DTYPES[u.dtype], variant, order)
    backward_instance = selective_scan_backward_instances.chosen(
        problem, DTYPES[u.dtype], variant
    )
    edge_steps = backward_instance.edge_steps
    no_pointers = (0,) * (len(given) + 3)  # y, last_state and edges too
    words = (
        *no_pointers,
        problem.batch,
        problem.channels,
        problem.steps,
        problem.states,
        problem.groups,
        *strides(u, 2),
        *strides(tensors["delta"], 2),
        *strides(tensors["z"], 2),
        *key_strides(tensors["B"]),
        *key_strides(tensors["C"]),
        *strides(tensors["A"], 1),
        *strides(tensors["initial_state"], 2),
        edge_steps.bit_length() - 1,
        int(delta_softplus),
    )
    return Plan(
        instance=instance,
        device=device,
        blocks=blocks(problem, instance),
        problem=problem,
        edge_steps=edge_steps,
        words=np.array(words, dtype=np.int64),
    )


def _initial(
    u: torch.Tensor, A: torch.Tensor, initial_state: torch.Tensor | None
) -> torch.Tensor:
    if initial_state is not None:
        return initial_state.clone()
    return u.new_zeros(*u.shape[:2], A.shape[1], dtype=torch.float32)
