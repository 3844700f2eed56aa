"""Ops of steps as differentiable torch functions, step by step or in chunks.

The forward pass keeps the read-out but no state; the backward pass computes the states
again, to the same bits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from scancheck.kernels.models import chunk_form, step_adjoint, step_form
from scancheck.kernels.models.algorithm import Algorithm
from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.chunk_frame import ChunkForm
from scancheck.kernels.models.step_family import Family, Inputs
from scancheck.kernels.models.step_form import Steps
from scancheck.kernels.models.tensors import (
    format_of,
    state_format,
    to_array,
    to_tensor,
)

Resolve = Callable[[str], tuple[Arithmetic, Algorithm | ChunkForm]]


def run_steps(
    resolve: Resolve, family: Family, tensors: tuple[torch.Tensor | None, ...]
) -> tuple[torch.Tensor, ...]:
    """The sequence output in the dtype of the first input, and the final state's parts.

    `resolve` gives the arithmetic and the algorithm for a storage format; `tensors` are
    in the order of `family.names`, None where an optional one is absent.
    """
    run: Any = _StepForm.apply
    outputs: tuple[torch.Tensor, ...] = run(resolve, family, *tensors)
    return outputs


class _StepForm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, resolve: Resolve, family: Family, *tensors: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        ctx.resolve, ctx.family = resolve, family
        ctx.save_for_backward(*tensors)
        given = _given(family, tensors)
        storage = format_of(given[family.names[0]])
        arithmetic, algorithm = resolve(storage.name)
        with np.errstate(all="ignore"):
            lowered = _lowered(arithmetic, family, given)
            ctx.o, final = _outputs(
                arithmetic, algorithm, lowered.steps, lowered.initial
            )
            y = family.epilogue(arithmetic, lowered.inputs, ctx.o)
            parts = family.state_out(_state_layout(family, final))
            parts += family.further_final(arithmetic, lowered.inputs)
            return (
                to_tensor(storage, y.swapaxes(0, 1)),
                *(to_tensor(state_format(storage), part) for part in parts),
            )

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, ybar: torch.Tensor, *final_bars: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        family = ctx.family
        given = _given(family, ctx.saved_tensors)
        arithmetic, algorithm = ctx.resolve(format_of(given[family.names[0]]).name)
        with np.errstate(all="ignore"):
            lowered = _lowered(arithmetic, family, given)
            obar, gradients = family.epilogue_pullback(
                arithmetic, lowered.inputs, ctx.o, _by_time(arithmetic, ybar)
            )
            of_parts = [arithmetic.lift(to_array(bar)) for bar in final_bars]
            bars, initial_bar = _adjoint(
                arithmetic,
                algorithm,
                lowered.steps,
                lowered.initial,
                obar,
                _state(family, np.zeros_like(lowered.initial), *of_parts),
            )
            of_steps = family.lower_pullback(
                arithmetic, lowered.inputs, lowered.steps, bars
            )
            for name, x in of_steps.items():
                known = gradients.get(name)
                gradients[name] = x if known is None else arithmetic.add(x, known)
            parts = family.state_out(_state_layout(family, initial_bar))
            # Further parts of a state, which S does not have, come from `finish`.
            gradients |= zip(_state_names(family), parts, strict=False)
            further = tuple(of_parts[len(parts) :])
            gradients = family.finish(arithmetic, lowered.inputs, gradients, further)
            return None, None, *_gradient_tensors(family, given, gradients)


def _outputs(
    arithmetic: Arithmetic, form: Algorithm | ChunkForm, steps: Steps, initial: Array
) -> tuple[Array, Array]:
    """o and the final state, as the form has them."""
    if isinstance(form, ChunkForm):
        return chunk_form.outputs(arithmetic, form, steps, initial)
    return step_form.outputs(arithmetic, form, steps, initial)


def _adjoint(
    arithmetic: Arithmetic,
    form: Algorithm | ChunkForm,
    steps: Steps,
    initial: Array,
    obar: Array,
    final_bar: Array,
) -> tuple[Steps, Array]:
    """The cotangents of the steps and of the initial state, as the form has them."""
    given = steps, initial, obar, final_bar
    if isinstance(form, ChunkForm):
        return chunk_form.adjoint(arithmetic, form, *given)
    return step_adjoint.adjoint(arithmetic, form, *given)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lowered:
    """A call's inputs as the steps of the recurrence."""

    inputs: Inputs
    steps: Steps
    initial: Array  # [B, heads, K, L]


def _given(
    family: Family, tensors: tuple[torch.Tensor | None, ...]
) -> dict[str, torch.Tensor]:
    """The inputs by name, without the absent ones."""
    named = zip(family.names, tensors, strict=True)
    return {name: tensor for name, tensor in named if tensor is not None}


def _lowered(
    arithmetic: Arithmetic, family: Family, given: dict[str, torch.Tensor]
) -> _Lowered:
    inputs = {
        name: _by_time(arithmetic, x)
        if name in family.sequences
        else arithmetic.lift(to_array(x))
        for name, x in given.items()
    }
    steps = family.lower(arithmetic, inputs)
    _, *lead, keys = steps.keys.shape
    zeros = np.zeros((*lead, keys, steps.values.shape[-1]), arithmetic.dtype)
    initial = _state(family, zeros, *map(inputs.get, _state_names(family)))
    return _Lowered(inputs=inputs, steps=steps, initial=initial)


def _state_names(family: Family) -> tuple[str, ...]:
    """The inputs that are the initial state, its parts in order."""
    return family.state, *family.further_state


def _state(family: Family, zeros: Array, *parts: Array | None) -> Array:
    """[B, heads, K, L] from the parts in the op's layout; zeros has that shape."""
    made = family.state_in(_state_layout(family, zeros), *parts)
    return _state_layout(family, made)


def _by_time(arithmetic: Arithmetic, tensor: torch.Tensor) -> Array:
    """[B, T, ...] as [T, B, ...]."""
    return np.ascontiguousarray(arithmetic.lift(to_array(tensor)).swapaxes(0, 1))


def _state_layout(family: Family, state: Array) -> Array:
    """A state from the op's layout to [B, heads, K, L], or back."""
    return state.swapaxes(-1, -2) if family.value_major else state


def _gradient_tensors(
    family: Family, given: dict[str, torch.Tensor], gradients: dict[str, Array]
) -> list[torch.Tensor | None]:
    """The gradients in the layout and dtype of the inputs, in the order of names."""
    tensors: list[torch.Tensor | None] = []
    for name in family.names:
        if name not in given:
            tensors.append(None)
            continue
        x = gradients[name]
        if name in family.sequences:
            x = x.swapaxes(0, 1)
        tensors.append(to_tensor(format_of(given[name]), x))
    return tensors
