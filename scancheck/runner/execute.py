"""Runs a kernel several times on the same inputs and watches what it does.

Every call gets its inputs in fresh memory between guards, after freed memory has been
filled with NaN, and leaves the process's global settings and random streams alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scancheck.bridge import bits_differ, from_torch, to_torch
from scancheck.errors import CaseInvalid, DeviceLost
from scancheck.formats import FloatArray
from scancheck.kernel import Kernel
from scancheck.ops.calling import Calling, sizes_of
from scancheck.ops.normal_form import Op, spec_of
from scancheck.recipes.inputs import Array, Inputs, without_padding
from scancheck.runner.attempt import attempt
from scancheck.runner.device import current, is_lost
from scancheck.runner.guarded import (
    Guarded,
    guarded,
    guards_changed,
    shares_memory,
    untouched,
    values_changed,
)
from scancheck.runner.isolation import isolated_random_streams
from scancheck.runner.outcome import Mask, Outcome, Problem, ProblemKind
from scancheck.runner.poison import poison_freed_memory
from scancheck.runner.returned import (
    Expected,
    dtype_name_of,
    expected_outputs,
    named_outputs,
    wrong_output,
)
from scancheck.runner.signature import accepted_parameters

_GRADIENT_RUNS = 2
_RANDOM_SEED = 0

# What has left a device unusable for this process, by the device's name.
_faults: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """What every call of a kernel on one case is made of."""

    kernel: Kernel
    tensors: dict[str, Tensor]  # op input name -> stored values
    switches: dict[str, bool]
    calling: Calling | None  # how sequences lie in the tensors
    steps: int  # tokens of a row
    expected: tuple[Expected, ...]
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One call, and what the harness saw."""

    values: dict[str, FloatArray] = field(default_factory=dict)  # outputs or gradients
    missing: tuple[str, ...] = ()
    problem: Problem | None = None
    changed: tuple[str, ...] = ()
    seconds: float = 0.0
    lost: bool = False  # the device


def execute(
    kernel: Kernel,
    op: Op,
    inputs: Inputs,
    dtype: str,
    *,
    cotangents: Mapping[str, FloatArray] | None = None,
    runs: int = 3,
) -> Outcome:
    """The outcome of `runs` calls on the same inputs, in the case's `dtype`.

    The calls run on the first of the kernel's devices, in the process of
    `kernel.elsewhere` where it has one.

    With `cotangents` (by output name; a missing one is zero) also the gradients of
    every input, from two further calls unless `runs` is 1. An output without a graph
    contributes zero. Whatever the kernel does wrong is data in the outcome; raises
    CaseInvalid when the kernel cannot be given these inputs, or returns more outputs
    than the op has, and ValueError for values or cotangents that do not fit the case.
    """
    if kernel.elsewhere is not None:
        outcome = kernel.elsewhere(op, inputs, dtype, cotangents=cotangents, runs=runs)
        assert isinstance(outcome, Outcome)
        return outcome
    device = torch.device(kernel.devices[0])
    if is_lost(device):
        return _after_loss(device)
    call = _prepare(kernel, op, inputs, dtype, device)
    _check_cotangents(call.expected, cotangents or {})
    with current(device), isolated_random_streams(_RANDOM_SEED, device):
        forward = [_forward(call)]
        while forward[-1].problem is None and len(forward) < runs:
            forward.append(_forward(call))
        backward: list[_Run] = []
        if cotangents is not None and forward[0].values:
            backward = [_backward(call, cotangents)]
            while backward[-1].problem is None and len(backward) < _repeats(runs):
                backward.append(_backward(call, cotangents))
    every = forward + backward
    for run in every:
        if run.lost and run.problem is not None:
            _faults.setdefault(str(device), f"{kernel.name}: {run.problem.message}")
    first = backward[0] if backward else _Run()
    return Outcome(
        outputs=_of_tokens(op, forward[0].values),
        gradients=first.values,
        missing_gradients=first.missing,
        problem=next((run.problem for run in every if run.problem), None),
        differs=_of_tokens(op, _differences(forward)),
        gradient_differs=_differences(backward),
        changed_inputs=tuple(dict.fromkeys(n for run in every for n in run.changed)),
        seconds=sum(run.seconds for run in every),
        device_lost=any(run.lost for run in every),
    )


def _of_tokens(op: Op, values: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs, or masks of them, zero at padding: what is there is not judged."""
    return {
        name: without_padding(op, spec_of(op, name, array.ndim), array)
        for name, array in values.items()
    }


def check_not_lost(device: str) -> None:
    """Raises DeviceLost where this process cannot use the device any more."""
    if is_lost(torch.device(device)):
        raise DeviceLost(_loss(device))


def _after_loss(device: torch.device) -> Outcome:
    """What comes of a call that cannot be made any more."""
    message = f"was not called: {_loss(str(device))}"
    problem = Problem(kind="device_error", message=message)
    return Outcome(problem=problem, device_lost=True)


def _loss(device: str) -> str:
    """What has become of a device, and what to do."""
    cause = _faults.get(device, "a CUDA error that no kernel of this run has made")
    return (
        f"{device} is lost to this process since {cause}; start another, or name the "
        "kernel as package.module:callable, so that it runs in a process of its own"
    )


def _repeats(runs: int) -> int:
    return min(runs, _GRADIENT_RUNS)


def _prepare(
    kernel: Kernel, op: Op, inputs: Inputs, dtype: str, device: torch.device
) -> _Call:
    accepted = accepted_parameters(kernel, op)
    given = [*inputs.tensors, *(name for name, on in inputs.switches.items() if on)]
    given += op.calling.arguments if op.calling is not None else ()
    if refused := [name for name in given if name not in accepted]:
        raise CaseInvalid(
            f"{kernel.name}: takes no {', '.join(refused)}, which this case passes"
        )
    tensors = {}
    for name, values in inputs.tensors.items():
        spec = spec_of(op, name, values.ndim)
        tensors[name] = to_torch(values, dtype_name_of(spec, dtype)).to(device)
    return _Call(
        kernel=kernel,
        tensors=tensors,
        switches={n: on for n, on in inputs.switches.items() if n in accepted},
        calling=op.calling,
        steps=sizes_of(op, inputs.tensors)[op.time_axis],
        expected=expected_outputs(op, inputs, dtype),
        device=device,
    )


def _check_cotangents(
    expected: tuple[Expected, ...], cotangents: Mapping[str, FloatArray]
) -> None:
    shapes = {want.name: want.shape for want in expected}
    for name, values in cotangents.items():
        if shapes.get(name) != values.shape:
            raise ValueError(
                f"cotangents: expected {name} of shape {shapes.get(name)}; "
                f"got {values.shape}"
            )


def _forward(call: _Call) -> _Run:
    """One call without gradients; its outputs."""
    guards = {name: guarded(tensor) for name, tensor in call.tensors.items()}
    tensors = {name: guard.tensor for name, guard in guards.items()}
    found, problem, seconds = _outputs(call, tensors, "raised", "raised")
    if problem is not None and is_lost(call.device):
        return _Run(problem=problem, seconds=seconds, lost=True)
    changed, outside = _touched(guards)
    misused = _view(found, guards) or _misused_memory(changed, outside, "the call")
    return _Run(
        values={name: from_torch(tensor) for name, tensor in found.items()},
        problem=problem or misused,
        changed=changed,
        seconds=seconds,
    )


def _backward(call: _Call, cotangents: Mapping[str, FloatArray]) -> _Run:
    """One call with gradients; those of its inputs."""
    guards = {name: guarded(tensor) for name, tensor in call.tensors.items()}
    leaves = {name: g.tensor.detach().requires_grad_() for name, g in guards.items()}
    what = "with inputs that require gradients, the call raised"
    found, problem, seconds = _outputs(call, leaves, "not_differentiable", what)
    gradients: dict[str, Tensor | None] = dict.fromkeys(leaves)
    if problem is None and not any(t.requires_grad for t in found.values()):
        message = "no output has a grad_fn, although every input requires a gradient"
        problem = Problem(kind="not_differentiable", message=message)
    if problem is None:
        ends = [n for n in cotangents if n in found and found[n].requires_grad]
        formats = {want.name: want.dtype_name for want in call.expected}
        seeds = {
            n: guarded(to_torch(cotangents[n], formats[n]).to(call.device))
            for n in ends
        }
        gradients, problem, more = _pulled_back(call, leaves, found, seeds)
        guards |= {f"the cotangent of {name}": seed for name, seed in seeds.items()}
        seconds += more
    if problem is not None and is_lost(call.device):
        return _Run(problem=problem, seconds=seconds, lost=True)
    known = {n: from_torch(g) for n, g in gradients.items() if g is not None}
    zeros = {n: np.zeros(leaf.shape) for n, leaf in leaves.items()}
    changed, outside = _touched(guards)
    misused = _misused_memory(changed, outside, "the call or its backward")
    return _Run(
        values={} if problem else zeros | known,
        missing=() if problem else tuple(n for n in leaves if n not in known),
        problem=problem or misused,
        changed=tuple(name for name in changed if name in leaves),
        seconds=seconds,
    )


def _outputs(
    call: _Call, tensors: dict[str, Tensor], kind: ProblemKind, what: str
) -> tuple[dict[str, Tensor], Problem | None, float]:
    """The outputs by name when they are what the op defines; else the problem."""
    poison_freed_memory((want.bytes for want in call.expected), call.device)
    kernel = call.kernel.call
    returned, problem, seconds = attempt(
        partial(kernel, **tensors, **call.switches, **_calling_arguments(call)),
        kind=kind,
        what=what,
        owner=kernel,
        device=call.device,
    )
    if problem is None:
        found = named_outputs(call.kernel.name, returned, call.expected)
        problem = wrong_output(found, call.expected, call.device)
    return ({}, problem, seconds) if problem else (found, None, seconds)


def _calling_arguments(call: _Call) -> dict[str, Any]:
    """What tells the kernel of the sequences, made anew for each call.

    cu_seqlens [NS + 1] int64, reverse, and attention_mask [B, T], true at tokens.
    """
    calling = call.calling
    if calling is None:
        return {}
    given: dict[str, Any] = {}
    if calling.cu_seqlens is not None:
        offsets = torch.tensor(calling.cu_seqlens, dtype=torch.int64)
        given["cu_seqlens"] = offsets.to(call.device)
    if calling.reverse:
        given["reverse"] = True
    if calling.lengths is not None:
        mask = torch.from_numpy(calling.mask(call.steps))
        given["attention_mask"] = mask.to(call.device)
    return given


def _pulled_back(
    call: _Call,
    leaves: dict[str, Tensor],
    found: dict[str, Tensor],
    seeds: dict[str, Guarded],
) -> tuple[dict[str, Tensor | None], Problem | None, float]:
    """The gradient of every input, None where the graph does not reach it."""
    nothing: dict[str, Tensor | None] = dict.fromkeys(leaves)
    if not seeds:
        return nothing, None, 0.0
    poison_freed_memory((leaf.nbytes for leaf in leaves.values()), call.device)
    gradients, problem, seconds = attempt(
        partial(
            torch.autograd.grad,
            [found[name] for name in seeds],
            list(leaves.values()),
            [seed.tensor for seed in seeds.values()],
            allow_unused=True,
        ),
        kind="backward_raised",
        what="its backward raised",
        owner=call.kernel.call,
        device=call.device,
    )
    if problem is not None:
        return nothing, problem, seconds
    return dict(zip(leaves, gradients, strict=True)), None, seconds


def _view(found: dict[str, Tensor], guards: dict[str, Guarded]) -> Problem | None:
    """An output that lies in an input's memory, or None."""
    for output, tensor in found.items():
        for name, guard in guards.items():
            if shares_memory(tensor, guard):
                message = f"{output}: expected memory of its own; got a view of {name}"
                return Problem(kind="aliases_input", message=message)
    return None


def _misused_memory(
    changed: tuple[str, ...], outside: tuple[str, ...], what: str
) -> Problem | None:
    """What the kernel did with memory that is not its own, or None."""
    if changed:
        message = f"{what} changed {', '.join(changed)} in place"
        return Problem(kind="input_changed", message=message)
    if outside:
        message = f"{what} wrote before the start or past the end of {outside[0]}"
        return Problem(kind="wrote_outside", message=message)
    return None


def _touched(
    guards: Mapping[str, Guarded],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names whose values have changed, and those whose guards have."""
    if untouched(guards.values()):
        return (), ()
    changed = tuple(n for n, guard in guards.items() if values_changed(guard))
    outside = tuple(n for n, guard in guards.items() if guards_changed(guard))
    return changed, outside


def _differences(runs: list[_Run]) -> dict[str, Mask]:
    """Where the values of later runs differ in a bit from those of the first."""
    if not runs:
        return {}
    masks: dict[str, Mask] = {}
    for name, first in runs[0].values.items():
        masks[name] = np.zeros(first.shape, dtype=bool)
        for other in runs[1:]:
            if name in other.values:
                masks[name] |= bits_differ(first, other.values[name])
    return masks
