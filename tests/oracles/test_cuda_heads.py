"""The card's oracles of ops with heads: what the CPU gives, within its certificates."""

from typing import Any

import numpy as np
import pytest

from scancheck.bounds.budget import Allowance, budget_for
from scancheck.bounds.moments import moments_for
from scancheck.case import Case, make_case
from scancheck.checks.oracle import CARD_OPS
from scancheck.contract import Contract, parse_contract
from scancheck.ops import OPS
from scancheck.oracles import cuda_card
from scancheck.oracles.cuda_double_double import CudaDoubleDoubleSystem
from scancheck.oracles.cuda_fp64 import CudaFp64System
from scancheck.oracles.double_double_scan import DoubleDoubleSystem
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.recipes.build import build
from scancheck.recipes.inputs import cotangents

SIZES = {"B": 2, "T": 21, "L": 21, "H": 2, "HV": 4, "K": 5, "V": 3, "P": 3, "N": 5}
OTHERS = [name for name in CARD_OPS if name not in ("linear_scan", "selective_scan")]
CONTRACTS = ("default", "structure=sequential", "structure=chunk(8,tree,sequential)")


def case_of(name: str) -> Case:
    """A case with every optional tensor, in few groups and odd widths."""
    op = OPS[name]
    sizes = SIZES | {"G": 1} | ({} if "HV" in op.size_names else {"H": 4})
    options = {s.name: True for s in op.inputs if not s.required} | {
        switch: True for switch in op.switches
    }
    kept = {axis: sizes[axis] for axis in op.size_names}
    return make_case(name, kept, recipe="gaussian_slow", seed=5, options=options)


def arguments(name: str) -> tuple[Any, ...]:
    """What a rung is asked to solve."""
    case = case_of(name)
    inputs = build(case)
    return OPS[name], inputs.tensors, inputs.switches, cotangents(case, "dense", 5)


def numbers(system: Any, name: str) -> dict[str, Any]:
    """Outputs and gradients, on the CPU."""
    solution = solve(system, *arguments(name))
    return {
        name: number.like(*map(cuda_card.on_cpu, number.components))
        for name, number in {**solution.outputs, **solution.gradients}.items()
    }


def test_ops_with_heads_are_judged_there() -> None:
    """All whose transition is diagonal."""
    assert {name for name, op in OPS.items() if op.diagonal} == set(CARD_OPS)


@pytest.mark.parametrize("name", OTHERS)
def test_balls_meet_those_of_the_cpu(name: str, card: str) -> None:
    """Values within both radii, and radii that are as small."""
    want, got = numbers(Fp64System(), name), numbers(CudaFp64System(), name)
    assert want.keys() == got.keys()
    for tensor, left in want.items():
        right = got[tensor]
        apart = np.abs(left.value - right.value)
        assert (apart <= left.radius + right.radius).all(), tensor
        assert (right.radius <= 1.5 * left.radius + 2.0**-1060).all(), tensor


@pytest.mark.parametrize("name", OTHERS)
def test_double_doubles_meet_those_of_the_cpu(name: str, card: str) -> None:
    """Within both radii, which are far below those of balls."""
    want, got = (
        numbers(system, name)
        for system in (DoubleDoubleSystem(), CudaDoubleDoubleSystem())
    )
    for tensor, left in want.items():
        right = got[tensor]
        apart = np.abs((left.hi - right.hi) + (left.lo - right.lo))
        reach = (left.radius + right.radius) * 1.001
        assert (apart <= reach + 2.0**-104 * np.abs(left.hi)).all(), tensor
        assert (right.radius <= 1.5 * left.radius + 2.0**-1060).all(), tensor


@pytest.mark.parametrize("text", CONTRACTS)
@pytest.mark.parametrize("name", OTHERS)
def test_budgets_are_those_of_the_cpu(name: str, text: str, card: str) -> None:
    """Of outputs and gradients, up to what the card's exp rounds otherwise."""
    op, tensors, switches, bars = arguments(name)
    given = op, tensors, switches, parse_contract(text), "fp32", bars
    want, got = budget_for(*given), budget_for(*given, device="cuda")
    for left, right in ((want.outputs, got.outputs), (want.gradients, got.gradients)):
        assert left.keys() == right.keys()
        for tensor, allowance in left.items():
            assert_alike(allowance, right[tensor], tensor)


def assert_alike(left: Allowance, right: Allowance, name: str) -> None:
    """The same to eleven digits."""
    for x, y in ((left.error, right.error), (left.magnitude, right.magnitude)):
        assert (np.abs(x - y) <= 1e-11 * np.abs(x) + 2.0**-1060).all(), name
    assert np.array_equal(left.overflows, right.overflows), name


@pytest.mark.parametrize("name", OTHERS)
def test_moments_are_those_of_the_cpu(name: str, card: str) -> None:
    """sqrt(v) of the outputs."""
    op, tensors, switches, _ = arguments(name)
    given = op, tensors, switches, Contract(), "fp32"
    want, got = moments_for(*given), moments_for(*given, device="cuda")
    assert want is not None
    assert got is not None
    assert want.keys() == got.keys()
    for tensor, root in want.items():
        assert (np.abs(root - got[tensor]) <= 1e-11 * root + 2.0**-1060).all(), tensor
