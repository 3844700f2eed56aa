"""Chains as the tensors of linear_scan and selective_scan."""

import numpy as np

from scancheck.formats import FloatArray
from scancheck.recipes.chains import (
    RESET_RATE,
    Chains,
    Plan,
    Tensors,
    draws,
    inverse_softplus,
)
from scancheck.recipes.streams import bell, halving, signed, uniform


def linear_scan_tensors(plan: Plan, chains: Chains) -> Tensors:
    """a or g, b and initial_state."""
    rate = np.minimum(chains.step * chains.speed[:, 0], RESET_RATE)
    gate = {"a": halving(rate)} if plan.form == "a" else {"g": -rate}
    return gate | {"b": chains.drive, "initial_state": chains.state[:, :, 0]}


def selective_scan_tensors(plan: Plan, chains: Chains) -> Tensors:
    """All tensors of selective_scan; the caller drops those that are not wanted.

    Where the step is at least 1/4, u is drive / step, so that B u delta has the size
    of the drive; below, small steps mean small drives, as in a trained model.
    """
    bias = step_bias(plan, chains)
    argument = inverse_softplus(chains.step) if plan.softplus else chains.step
    drive = chains.drive / np.maximum(chains.step, 0.25)
    return {
        "u": drive.transpose(0, 2, 1),
        "delta": (argument - bias).transpose(0, 2, 1),
        "A": -chains.speed,
        "B": keys(plan, "B", steady=chains.steady_keys),
        "C": keys(plan, "C", steady=False),
        "D": bell(draws(plan, "D"), (plan.channels,)),
        "z": uniform(
            draws(plan, "z"), -2.0, 4.0, (plan.batch, plan.channels, plan.steps)
        ),
        "delta_bias": bias,
        "initial_state": chains.state,
    }


def step_bias(plan: Plan, chains: Chains) -> FloatArray:
    """delta_bias [D]; without softplus so small that delta stays positive.

    It has the significand of its own format, fp32, so that a kernel that casts it to
    the format of delta is off by more than it may be.
    """
    if not plan.bias:
        return np.zeros(plan.channels)
    if plan.softplus:
        if chains.bias is not None:
            return chains.bias
        return uniform(draws(plan, "bias"), -2.0, 2.0, (plan.channels,))
    smallest = chains.step.min(axis=(0, 1), initial=1.0)
    _, exponent = np.frexp(smallest)
    significand = uniform(draws(plan, "bias"), 1.0, 2.0, (plan.channels,))
    return np.asarray(np.ldexp(significand, exponent - 3), dtype=np.float64)


def keys_shape(plan: Plan) -> tuple[int, ...]:
    """The shape of B and C in the layout of the plan."""
    return {
        "time": (plan.batch, plan.states, plan.steps),
        "grouped": (plan.batch, plan.groups, plan.states, plan.steps),
        "constant": (plan.channels, plan.states),
    }[plan.keys]


def keys(plan: Plan, name: str, *, steady: bool) -> FloatArray:
    """B or C: magnitudes in [1/2, 3/2), random signs; steady: the same at all times."""
    shape = keys_shape(plan)
    if steady and plan.keys != "constant":
        one = signed(draws(plan, name), 0.5, 1.5, (*shape[:-1], 1))
        return np.broadcast_to(one, shape).copy()
    return signed(draws(plan, name), 0.5, 1.5, shape)
