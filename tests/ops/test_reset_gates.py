"""A log gate of minus infinity is a fresh start, in every rung, budget and model."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from test_heads import HEADS, SIZES, problem

from scancheck.bounds.budget import budget_for
from scancheck.bounds.moments import moments_for
from scancheck.contract import Contract, parse_contract
from scancheck.kernels.models.catalog import model
from scancheck.ops import OPS
from scancheck.ops.normal_form import Op, state_inputs, state_outputs
from scancheck.oracles import ball, double_double
from scancheck.oracles.double_double_scan import DoubleDoubleSystem
from scancheck.oracles.engine import Solution, solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.oracles.multiprecision import solve_multiprecision
from scancheck.oracles.systems import GenericSystem
from scancheck.oracles.wide_double import solve_wide

FloatArray = NDArray[np.float64]
Tensors = dict[str, FloatArray]

RESET, LENGTH = 3, 6
GATES = [
    ("linear_scan", "g"),
    ("simple_gla", "g"),
    ("gla", "gk"),
    ("gla", "gv"),
    ("rwkv6", "w"),
    ("rwkv7", "w"),
    ("gated_delta_rule", "g"),
    ("gated_delta_product", "g"),
    ("kda", "g"),
]

# Their gradients have terms of the state before the reset, or of tokens before it.
SEES_BEFORE = (("rwkv6", "u"), ("rwkv7", "b"))


class Balls(GenericSystem):
    """Step by step in fp64."""

    def constant(self, values: FloatArray) -> Any:
        return ball.exact_ball(values)


Solve = Callable[[Op, Mapping[str, FloatArray], Mapping[str, FloatArray]], Solution]
RUNGS: dict[str, Solve] = {
    "balls": lambda op, tensors, bars: solve(Balls(), op, tensors, {}, bars),
    "fp64": lambda op, tensors, bars: solve(Fp64System(), op, tensors, {}, bars),
    "double_double": lambda op, tensors, bars: solve(
        DoubleDoubleSystem(), op, tensors, {}, bars
    ),
    "wide_double": lambda op, tensors, bars: solve_wide(op, tensors, {}, bars),
    "multiprecision": lambda op, tensors, bars: solve_multiprecision(
        op, tensors, {}, bars, bits=128
    ),
}


def reset(name: str, gate: str) -> tuple[Tensors, Tensors]:
    """Tensors with a reset at one token, and cotangents of what comes after it.

    rwkv7's rank-one part reads the state before its decay, so it writes nothing there.
    rwkv6's readout at a token is of the state before: its cotangent starts a token on.
    """
    sizes = SIZES | HEADS["shared"] | {"T": LENGTH, "D": 3}
    left_out = ("a",) if name == "linear_scan" else ()
    tensors, bars = problem(name, sizes, left_out)
    tensors[gate][:, RESET] = -np.inf
    if name == "rwkv7":
        tensors["b"][:, RESET] = 0.0
    bars[OPS[name].outputs[0].name][:, : RESET + (name == "rwkv6")] = 0.0
    return tensors, bars


def value_and_radius(number: Any) -> tuple[FloatArray, FloatArray]:
    """Centres and certified radii of balls or double-doubles."""
    if isinstance(number, ball.Ball):
        return number.value, ball.certified_radius(number)
    return number.hi + number.lo, double_double.certified_radius(number)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize(("name", "gate"), GATES)
def test_a_reset_is_a_fresh_start(name: str, gate: str, rung: str) -> None:
    """What follows is that of the tokens from the reset on, without any state."""
    op, run = OPS[name], RUNGS[rung]
    tensors, bars = reset(name, gate)
    with np.errstate(all="raise", under="ignore"):
        whole = run(op, tensors, bars)
    times = {s.name for s in op.inputs if op.time_axis in s.axes}
    later = {
        n: x[:, RESET:] if n in times else x
        for n, x in tensors.items()
        if n not in state_inputs(op)
    }
    first, *finals = op.outputs
    fresh = run(op, later, bars | {first.name: bars[first.name][:, RESET:]})
    skipped = int(name == "rwkv6")
    pairs = [
        (whole.outputs[first.name][:, RESET + skipped :], fresh.outputs[first.name]),
        *((whole.outputs[s.name], fresh.outputs[s.name]) for s in finals),
        *(
            (whole.gradients[n][:, RESET:] if n in times else bar, bar)
            for n, bar in fresh.gradients.items()
            if (name, n) not in SEES_BEFORE
        ),
    ]
    for one, other in pairs:
        got, reach = value_and_radius(one)
        want, more = value_and_radius(other)
        if got.shape != want.shape:
            want, more = want[:, skipped:], more[:, skipped:]
        assert np.isfinite(reach).all()
        assert (np.abs(got - want) <= reach + more + 1e-30 * np.abs(want)).all()


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize(("name", "gate"), GATES)
def test_no_gradient_passes_a_reset(name: str, gate: str, rung: str) -> None:
    """Earlier inputs, the state and the gate itself have gradients of zero."""
    op = OPS[name]
    tensors, bars = reset(name, gate)
    found = RUNGS[rung](op, tensors, bars).gradients
    assert set(found) == set(tensors)
    for tensor, number in found.items():
        value, radius = value_and_radius(number)
        assert np.isfinite(value).all() and np.isfinite(radius).all(), tensor
        if tensor in state_inputs(op):
            before = value
        elif op.time_axis in next(s for s in op.inputs if s.name == tensor).axes:
            before = value[:, : RESET + (tensor == gate)]
        else:
            continue
        assert np.abs(before).max() <= 2.0**-1040, tensor
        assert np.abs(value).max() > 0.0 or tensor in state_inputs(op), tensor


@pytest.mark.parametrize(("name", "gate"), GATES)
def test_budgets_are_finite(name: str, gate: str) -> None:
    """Neither the sound nor the probable bound is spoilt, nor any range suspected."""
    op = OPS[name]
    tensors, bars = reset(name, gate)
    claim = Contract() if op.diagonal else parse_contract("structure=sequential")
    with np.errstate(all="raise", under="ignore"):
        budget = budget_for(op, tensors, {}, claim, "fp32", bars)
        moments = moments_for(op, tensors, {}, claim, "fp32", bars) or {}
    for tensor, allowed in (budget.outputs | budget.gradients).items():
        assert np.isfinite(allowed.error).all(), tensor
        assert not allowed.overflows.any(), tensor
    assert all(np.isfinite(x).all() for x in moments.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "gate"), GATES)
def test_models_start_afresh(name: str, gate: str, dtype: torch.dtype) -> None:
    """A model's final state has the bits of a call on what follows the reset."""
    op = OPS[name]
    tensors, _ = reset(name, gate)
    states = state_inputs(op)
    given = {
        n: torch.tensor(x).to(torch.float32 if n in states else dtype)
        for n, x in tensors.items()
    }
    call = model(name, "sequential", "plain").call
    leaves = {n: x.requires_grad_() for n, x in given.items()}
    outputs = call(**leaves)
    times = {s.name for s in op.inputs if op.time_axis in s.axes}
    later = {
        n: x.detach()[:, RESET:] if n in times else x.detach()
        for n, x in given.items()
        if n not in states
    }
    assert len(state_outputs(op)) == 1
    assert torch.equal(outputs[1], call(**later)[1])
    total: Any = sum(x.float().sum() for x in outputs)
    total.backward()
    for n, x in leaves.items():
        assert x.grad is not None and bool(torch.isfinite(x.grad).all()), n
    gates = leaves[gate].grad
    assert gates is not None and not gates[:, RESET].any()
