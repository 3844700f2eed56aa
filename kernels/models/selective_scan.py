"""selective_scan in model arithmetic, one rounded operation at a time.

    x = delta + delta_bias       d = softplus(x), or x          w = exp(d A)
    h_t = w_t h_{t-1} + (d_t u_t) B_t
    y_t = (sum_n C_tn h_tn + D u_t) silu(z_t)                    n ascending

Gradients follow the definition backwards in the same arithmetic (numerics 2.9, explicit
adjoint). The forward pass keeps the states at chunk edges, as they are carried over
them; from these the backward pass recomputes the states inside each chunk and the
ungated outputs, to the bits they had before they were stored. The adjoint's chunks are
counted from the end. Arrays have time in front: [T, B, D], and [T, B, D, N] for states.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
from scancheck.kernels.models.combine import Affine
from scancheck.kernels.models.reduction import ascending_sum, sum_over_tokens
from scancheck.kernels.models.selective_layout import (
    Tensors,
    arranged,
    given_tensors,
    gradient_tensors,
)
from scancheck.kernels.models.tensors import (
    format_of,
    state_format,
    to_array,
    to_tensor,
)

Resolve = Callable[[str], tuple[Arithmetic, Algorithm]]


def selective_scan(
    resolve: Resolve, delta_softplus: bool, tensors: Tensors
) -> tuple[torch.Tensor, torch.Tensor]:
    """y [B, D, L] and the last state [B, D, N], differentiable.

    `resolve` gives the arithmetic and the algorithm for a storage format; `tensors`
    are the op's inputs in the order of `selective_layout.NAMES`.
    """
    run: Any = _SelectiveScan.apply
    y, last_state = run(resolve, delta_softplus, *tensors)
    return y, last_state


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, resolve: Resolve, delta_softplus: bool, *tensors: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.resolve = resolve
        ctx.delta_softplus = delta_softplus
        ctx.save_for_backward(*tensors)
        given = given_tensors(tensors)
        storage = format_of(given["u"])
        arithmetic, algorithm = resolve(storage.name)
        with np.errstate(all="ignore"):
            inputs = arranged(arithmetic, given)
            lowered = _lowered(arithmetic, algorithm, inputs, delta_softplus)
            scanned = scan(
                arithmetic, algorithm, lowered.steps, inputs["initial_state"]
            )
            ctx.edges, states = scanned.edges, scanned.states
            final = states[-1] if len(states) else inputs["initial_state"]
            y = _ungated(arithmetic, inputs, states)
            if "z" in inputs:
                y = arithmetic.mul(y, arithmetic.silu(inputs["z"]))
            return to_tensor(storage, y.transpose(1, 2, 0)), to_tensor(
                state_format(storage), final
            )

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, ybar: torch.Tensor, final_bar: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        given = given_tensors(ctx.saved_tensors)
        arithmetic, algorithm = ctx.resolve(format_of(given["u"]).name)
        with np.errstate(all="ignore"):
            inputs = arranged(arithmetic, given)
            gradients = _gradients(
                arithmetic,
                algorithm,
                inputs,
                ctx.delta_softplus,
                ctx.edges,
                arithmetic.lift(to_array(ybar)).transpose(2, 0, 1),
                arithmetic.lift(to_array(final_bar)),
            )
            tensors = gradient_tensors(arithmetic, gradients, given)
        return None, None, *tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lowered:
    """The steps of the scan and what its gradients need again."""

    steps: Steps  # [T, B, D, N]
    softplus_argument: Array  # x, [T, B, D]
    step_size: Array  # d, [T, B, D]
    written: Array  # d u, [T, B, D]


def _lowered(
    arithmetic: Arithmetic,
    algorithm: Algorithm,
    inputs: dict[str, Array],
    delta_softplus: bool,
) -> _Lowered:
    x = inputs["delta"]
    if "delta_bias" in inputs:
        x = arithmetic.add_wider(x, inputs["delta_bias"])
    d = arithmetic.softplus(x) if delta_softplus else x
    written = arithmetic.mul(d, inputs["u"])
    return _Lowered(
        steps=exponential_steps(
            arithmetic,
            algorithm,
            arithmetic.mul(d[..., None], inputs["A"]),
            arithmetic.mul(written[..., None], inputs["B"]),
        ),
        softplus_argument=x,
        step_size=d,
        written=written,
    )


def _ungated(arithmetic: Arithmetic, inputs: dict[str, Array], states: Array) -> Array:
    """C . h + D u, [T, B, D]."""
    p = ascending_sum(arithmetic, arithmetic.mul(inputs["C"], states), -1)
    if "D" in inputs:
        p = arithmetic.add(p, arithmetic.mul(inputs["D"], inputs["u"]))
    return p


def _gradients(
    arithmetic: Arithmetic,
    algorithm: Algorithm,
    inputs: dict[str, Array],
    delta_softplus: bool,
    edges: Affine,
    ybar: Array,
    final_bar: Array,
) -> dict[str, Array]:
    """The cotangent of every input; those of B and C not yet summed, [T, B, D, N]."""
    mul, add = arithmetic.mul, arithmetic.add
    lowered = _lowered(arithmetic, algorithm, inputs, delta_softplus)
    steps, d = lowered.steps, lowered.step_size
    states = states_again(arithmetic, algorithm, steps, edges)
    gradients = {}

    pbar = ybar
    if "z" in inputs:
        pbar = mul(ybar, arithmetic.silu(inputs["z"]))
        gated = mul(ybar, _ungated(arithmetic, inputs, states))
        gradients["z"] = mul(gated, arithmetic.silu_slope(inputs["z"]))
    gradients["C"] = mul(pbar[..., None], states)

    adjoint, gradients["initial_state"] = adjoint_scan(
        arithmetic, algorithm, steps, mul(pbar[..., None], inputs["C"]), final_bar
    )
    gradients["B"] = mul(adjoint, lowered.written[..., None])
    written_bar = ascending_sum(arithmetic, mul(adjoint, inputs["B"]), -1)
    decay_bar = mul(adjoint, previous(states, inputs["initial_state"]))
    log_bar = decayed(arithmetic, algorithm, steps, decay_bar, slice(None))
    gradients["A"] = sum_over_tokens(arithmetic, mul(log_bar, d[..., None]))

    gradients["u"] = mul(written_bar, d)
    if "D" in inputs:
        gradients["D"] = sum_over_tokens(arithmetic, mul(pbar, inputs["u"]))
        gradients["u"] = add(gradients["u"], mul(pbar, inputs["D"]))
    step_bar = add(
        ascending_sum(arithmetic, mul(log_bar, inputs["A"]), -1),
        mul(written_bar, inputs["u"]),
    )
    if delta_softplus:
        step_bar = mul(step_bar, arithmetic.sigmoid(lowered.softplus_argument))
    gradients["delta"] = step_bar
    if "delta_bias" in inputs:
        gradients["delta_bias"] = sum_over_tokens(arithmetic, step_bar)
    return gradients
