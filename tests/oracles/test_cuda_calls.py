"""Calls of every op on the card: nothing at all, several sequences, and in reverse."""

from typing import Any

import numpy as np
import pytest

from scancheck.bounds.budget import budget_for
from scancheck.bounds.moments import moments_for
from scancheck.case import Case, make_case
from scancheck.contract import parse_contract
from scancheck.formats import FloatArray
from scancheck.ops import OPS, op_named
from scancheck.ops.calling import op_of
from scancheck.oracles import cuda_card
from scancheck.oracles.cuda_double_double import CudaDoubleDoubleSystem
from scancheck.oracles.cuda_fp64 import CudaFp64System
from scancheck.oracles.double_double_scan import DoubleDoubleSystem
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.recipes.build import build
from scancheck.recipes.inputs import cotangents
from scancheck.recipes.op_rules import rules_of

CALLS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "no token": (2, 0, {}),
    "no sequence": (0, 5, {}),
    "packed": (1, 7, {"cu_seqlens": (0, 3, 3, 7)}),
    "nothing packed": (1, 0, {"cu_seqlens": (0, 0, 0)}),
    "padded in reverse": (2, 4, {"lengths": (4, 1), "reverse": True}),
}
CONTRACT = parse_contract("structure=sequential")


def case_of(name: str, call: str) -> Case:
    """A small case with everything optional, called like this."""
    batch, steps, calling = CALLS[call]
    op, rules = op_named(name), rules_of(name)
    sizes = dict(rules.roster[0]) | {"B": batch, op.time_axis: steps}
    options: dict[str, Any] = {
        n: True for n, x in rules.options.items() if isinstance(x, bool)
    }
    if op.forms:
        options["form"] = "g"
    options |= calling
    return make_case(name, sizes, recipe="gaussian_slow", seed=3, options=options)


def components(solution: Any) -> dict[str, list[FloatArray]]:
    """Of outputs and gradients, on the CPU."""
    numbers = {**solution.outputs, **solution.gradients}
    return {n: [*map(cuda_card.on_cpu, x.components)] for n, x in numbers.items()}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", OPS)
def test_calls_are_solved_as_on_the_cpu(name: str, call: str, card: str) -> None:
    """Centres within both radii; a rank-one transition's double-doubles stay here."""
    case = case_of(name, call)
    op, inputs, bars = op_of(case), build(case), cotangents(case, "dense", 5)
    pairs = [(Fp64System(), CudaFp64System())]
    if op.diagonal:
        pairs.append((DoubleDoubleSystem(), CudaDoubleDoubleSystem()))
    for systems in pairs:
        here, there = (
            components(solve(one, op, inputs.tensors, inputs.switches, bars))
            for one in systems
        )
        assert here.keys() == there.keys()
        for tensor, (value, *low, radius) in here.items():
            other, *other_low, other_radius = there[tensor]
            assert value.shape == other.shape
            apart = np.abs(value - other + sum(low) - sum(other_low))
            reach = (radius + other_radius) * 1.001 + 2.0**-104 * np.abs(value)
            assert (apart <= reach).all(), tensor
            assert (other_radius <= 1.5 * radius + 2.0**-1060).all(), tensor


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", OPS)
def test_calls_are_bounded_as_on_the_cpu(name: str, call: str, card: str) -> None:
    """Budgets to eleven digits, and second moments, with a bias of seven, in fp64."""
    case = case_of(name, call)
    op, inputs, bars = op_of(case), build(case), cotangents(case, "dense", 5)
    given = op, inputs.tensors, inputs.switches, CONTRACT, "fp32"
    here, there = (budget_for(*given, bars, device=d) for d in ("cpu", "cuda"))
    found = []
    for budget in (here, there):
        both = budget.outputs | budget.gradients
        found.append({n: allowance.error for n, allowance in both.items()})
    for one, device in zip(found, ("cpu", "cuda"), strict=True):
        moments = moments_for(*given, device=device) or {}
        one |= {f"moment of {n}": x for n, x in moments.items()}
    assert found[0].keys() == found[1].keys()
    for tensor, left in found[0].items():
        right = found[1][tensor]
        assert left.shape == right.shape
        share = 1e-7 if tensor.startswith("moment") else 1e-11
        assert (np.abs(left - right) <= share * left + 2.0**-1060).all(), tensor
