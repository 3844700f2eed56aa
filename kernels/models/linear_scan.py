"""linear_scan in model arithmetic: h_t = a_t h_{t-1} + b_t, with a = exp(g) from g.

Gradients (numerics 2.9, explicit adjoint): db_t = G_t, da_t = G_t S_{t-1} and
dg_t = a_t da_t. The forward pass keeps the states at chunk edges, as they are carried
over them; from these the backward pass recomputes every state inside its chunk, to the
bits it had before it was stored. The adjoint's chunks are counted from the end.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from scancheck.kernels.models.algorithm import (
    Algorithm,
    Steps,
    adjoint_scan,
    decayed,
    exponential_steps,
    previous,
    scan,
    states_again,
)
from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.tensors import (
    format_of,
    state_format,
    to_array,
    to_tensor,
)

Resolve = Callable[[str], tuple[Arithmetic, Algorithm]]


def linear_scan(
    resolve: Resolve,
    a: torch.Tensor | None,
    g: torch.Tensor | None,
    b: torch.Tensor,
    initial_state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """h [B, T, D] and the final state [B, D], differentiable.

    `resolve` gives the arithmetic and the algorithm for a storage format.
    """
    run: Any = _LinearScan.apply
    h, final_state = run(resolve, a, g, b, initial_state)
    return h, final_state


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        resolve: Resolve,
        a: torch.Tensor | None,
        g: torch.Tensor | None,
        b: torch.Tensor,
        initial_state: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.resolve = resolve
        ctx.save_for_backward(a, g, b, initial_state)
        storage = format_of(b)
        arithmetic, algorithm = resolve(storage.name)
        with np.errstate(all="ignore"):
            steps, initial = _lowered(arithmetic, algorithm, a, g, b, initial_state)
            scanned = scan(arithmetic, algorithm, steps, initial)
            ctx.edges, states = scanned.edges, scanned.states
            final = states[-1] if len(states) else initial
            h = to_tensor(storage, states.swapaxes(0, 1))
            return h, to_tensor(state_format(storage), final)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, hbar: torch.Tensor, final_bar: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        a, g, b, initial_state = ctx.saved_tensors
        storage = format_of(b)
        arithmetic, algorithm = ctx.resolve(storage.name)
        with np.errstate(all="ignore"):
            steps, initial = _lowered(arithmetic, algorithm, a, g, b, initial_state)
            states = states_again(arithmetic, algorithm, steps, ctx.edges)
            before = previous(states, initial)
            adjoint, initial_bar = adjoint_scan(
                arithmetic,
                algorithm,
                steps,
                arithmetic.lift(to_array(hbar)).swapaxes(0, 1),
                arithmetic.lift(to_array(final_bar)),
            )
            decay_bar = arithmetic.mul(adjoint, before)
            if g is not None:
                decay_bar = decayed(
                    arithmetic, algorithm, steps, decay_bar, slice(None)
                )
            gate_bar = to_tensor(storage, decay_bar.swapaxes(0, 1))
            return (
                None,
                None if a is None else gate_bar,
                None if g is None else gate_bar,
                to_tensor(storage, adjoint.swapaxes(0, 1)),
                None
                if initial_state is None
                else to_tensor(format_of(initial_state), initial_bar),
            )


def _lowered(
    arithmetic: Arithmetic,
    algorithm: Algorithm,
    a: torch.Tensor | None,
    g: torch.Tensor | None,
    b: torch.Tensor,
    initial_state: torch.Tensor | None,
) -> tuple[Steps, Array]:
    """The steps [T, B, D] and the initial state [B, D], zeros when not given."""

    def by_time(tensor: torch.Tensor) -> Array:
        lifted = arithmetic.lift(to_array(tensor))
        return np.ascontiguousarray(lifted.swapaxes(0, 1))

    drive = by_time(b)
    initial = np.zeros(drive.shape[1:], arithmetic.dtype)
    if initial_state is not None:
        initial = arithmetic.lift(to_array(initial_state))
    if g is not None:
        return exponential_steps(arithmetic, algorithm, by_time(g), drive), initial
    assert a is not None
    return Steps(drive=drive, decay=by_time(a)), initial
