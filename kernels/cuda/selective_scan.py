"""selective_scan on a CUDA device: Mamba-1's scan fused with its gates."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable

from scancheck.errors import CaseInvalid
from scancheck.kernels.cuda import selective_scan_backward_instances
from scancheck.kernels.cuda.compile import function_with_shared
from scancheck.kernels.cuda.launch import (
    CUDA_NAMES,
    aligned,
    check_device,
    check_tensor,
    launch,
    on_device,
    pointer,
)
from scancheck.kernels.cuda.selective_scan_backward import backward
from scancheck.kernels.cuda.selective_scan_instances import (
    BYTES,
    LARGEST_STATES,
    LARGEST_STEPS,
    SOURCE,
    STORAGE,
    Instance,
    Problem,
    blocks,
    check_options,
    chosen,
)

OP = "selective_scan"

_DTYPES = {name: dtype for dtype, name in CUDA_NAMES.items()}
DTYPES = {_DTYPES[source]: name for name, source in STORAGE.items()}
"""Names of the storage formats by torch dtype."""

_NAMES = ("u", "delta", "z", "B", "C", "A", "D", "delta_bias", "initial_state")
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
            named = dict(zip(_NAMES, tensors, strict=True))
            gradients = backward(
                variant,
                plan.problem,
                bool(delta_softplus),
                named | {"edges": edges},
                y_bar,
                last_bar,
                dict(zip(_NAMES, ctx.needs_input_grad[3:], strict=True)),
            )
        return None, None, None, *(gradients[name] for name in _NAMES)


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
    tensors = dict(zip(_NAMES, given, strict=True))
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
        *_strides(u, 2),
        *_strides(tensors["delta"], 2),
        *_strides(tensors["z"], 2),
        *_key_strides(tensors["B"]),
        *_key_strides(tensors["C"]),
        *_strides(tensors["A"], 1),
        *_strides(tensors["initial_state"], 2),
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


def _strides(tensor: torch.Tensor | None, count: int) -> tuple[int, ...]:
    return (0,) * count if tensor is None else tuple(tensor.stride()[:count])


def _key_strides(tensor: torch.Tensor | None) -> tuple[int, ...]:
    """Of B or C by batch, group and state; of a constant one 0, 0 and by channel."""
    assert tensor is not None
    match tensor.stride():
        case (channel, _):
            return 0, 0, channel
        case (batch, state, _):
            return batch, 0, state
        case strides:
            return strides[:3]


def _initial(
    u: torch.Tensor, A: torch.Tensor, initial_state: torch.Tensor | None
) -> torch.Tensor:
    if initial_state is not None:
        return initial_state.clone()
    return u.new_zeros(*u.shape[:2], A.shape[1], dtype=torch.float32)


def problem_of(tensors: dict[str, torch.Tensor | None], shared: int) -> Problem:
    """The problem of these tensors on a device with so much shared memory per block.

    Raises CaseInvalid for shapes and dtypes that do not fit.
    """
    u, delta, A, B, C = (tensors[name] for name in ("u", "delta", "A", "B", "C"))
    assert u is not None and delta is not None
    assert A is not None and B is not None and C is not None
    if u.ndim != 3:
        raise CaseInvalid(f"{OP} u: expected [B, D, L]; got shape {list(u.shape)}")
    batch, channels, steps = u.shape
    if steps > LARGEST_STEPS:
        raise CaseInvalid(f"{OP} u: expected L up to {LARGEST_STEPS}; got {steps}")
    check_tensor(OP, "u", u)
    own, fp32 = (u.dtype,), (torch.float32,)
    check_tensor(OP, "delta", delta, shape=u.shape, dtypes=own)
    if A.ndim != 2 or not 1 <= A.shape[1] <= LARGEST_STATES:
        raise CaseInvalid(
            f"{OP} A: expected [D, N] with N from 1 to {LARGEST_STATES}; "
            f"got shape {list(A.shape)}"
        )
    states = A.shape[1]
    check_tensor(OP, "A", A, shape=(channels, states), dtypes=fp32)
    told = (_groups(name, tensors[name], channels) for name in ("B", "C"))
    groups = {count for count in told if count is not None}
    if len(groups) > 1:
        raise CaseInvalid(
            f"{OP} C: expected as many groups as B has; got {C.shape[1]}, "
            f"and B has {B.shape[1]}"
        )
    group_count = groups.pop() if groups else 1
    for name, keys in (("B", B), ("C", C)):
        shapes = {
            2: (channels, states),
            3: (batch, states, steps),
            4: (batch, group_count, states, steps),
        }
        dtypes = fp32 if keys.ndim == 2 else own
        check_tensor(OP, name, keys, shape=shapes[keys.ndim], dtypes=dtypes)
    optional = {
        "D": ((channels,), fp32),
        "z": (tuple(u.shape), own),
        "delta_bias": ((channels,), fp32),
        "initial_state": ((batch, channels, states), fp32),
    }
    for name, (shape, dtypes) in optional.items():
        if (tensor := tensors[name]) is not None:
            check_tensor(OP, name, tensor, shape=shape, dtypes=dtypes)
    vector = 16 // BYTES[DTYPES[u.dtype]]
    keys_in_storage = [x for x in (B, C) if x.ndim > 2]
    return Problem(
        batch=batch,
        channels=channels,
        steps=steps,
        states=states,
        groups=group_count,
        constant_b=B.ndim == 2,
        constant_c=C.ndim == 2,
        aligned=aligned(vector, u, delta, tensors["z"], *keys_in_storage),
        shared=shared,
    )


def _groups(name: str, keys: torch.Tensor | None, channels: int) -> int | None:
    """G of B or C; None where it is constant. Raises CaseInvalid for other layouts."""
    assert keys is not None
    if keys.ndim not in (2, 3, 4):
        raise CaseInvalid(
            f"{OP} {name}: expected [B, N, L], [B, G, N, L] or [D, N]; "
            f"got shape {list(keys.shape)}"
        )
    if keys.ndim == 2:
        return None
    groups = 1 if keys.ndim == 3 else keys.shape[1]
    if groups < 1 or channels % groups:
        raise CaseInvalid(
            f"{OP} {name}: expected groups that divide {channels} channels; "
            f"got {groups}"
        )
    return groups
