"""The card's oracles of ops with heads: what the CPU gives, within its certificates."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scancheck.bounds.budget import Allowance, Budget, budget_for
from scancheck.bounds.moments import moments_for
from scancheck.case import Case, make_case
from scancheck.contract import Contract, parse_contract
from scancheck.errors import KernelUnavailable
from scancheck.ops import OPS
from scancheck.oracles import cuda_card, engine
from scancheck.oracles.columns import HERE, Known, run_columns
from scancheck.oracles.cuda_columns import CARD
from scancheck.oracles.cuda_double_double import CudaDoubleDoubleSystem
from scancheck.oracles.cuda_fp64 import CudaFp64System
from scancheck.oracles.double_double_scan import DoubleDoubleSystem
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.oracles.rank_one import ROUNDINGS
from scancheck.recipes.build import build
from scancheck.recipes.inputs import cotangents

FloatArray = NDArray[np.float64]
SIZES = {
    "B": 2,
    "T": 21,
    "L": 21,
    "H": 2,
    "HV": 4,
    "K": 5,
    "V": 3,
    "P": 3,
    "N": 5,
    "M": 2,
}
OTHERS = [name for name in OPS if name not in ("linear_scan", "selective_scan")]
DIAGONAL = [name for name in OTHERS if OPS[name].diagonal]
CASTS = "structure=sequential,casts=decay:bf16+drive:fp16"
CONTRACTS = (
    "default",
    "structure=sequential",
    "structure=sequential,gradient_parts=storage",
    "structure=chunk(8,tree,sequential)",
)


def case_of(name: str, **others: int) -> Case:
    """A case with every optional tensor, in few groups and odd widths."""
    op = OPS[name]
    sizes = SIZES | {"G": 1} | ({} if "HV" in op.size_names else {"H": 4}) | others
    options = {s.name: True for s in op.inputs if not s.required} | {
        switch: True for switch in op.switches
    }
    kept = {axis: sizes[axis] for axis in op.size_names}
    return make_case(name, kept, recipe="gaussian_slow", seed=5, options=options)


def arguments(name: str, **sizes: int) -> tuple[Any, ...]:
    """What a rung is asked to solve."""
    case = case_of(name, **sizes)
    inputs = build(case)
    return OPS[name], inputs.tensors, inputs.switches, cotangents(case, "dense", 5)


def numbers(system: Any, name: str, **sizes: int) -> dict[str, Any]:
    """Outputs and gradients, on the CPU."""
    solution = solve(system, *arguments(name, **sizes))
    return {
        name: number.like(*map(cuda_card.on_cpu, number.components))
        for name, number in {**solution.outputs, **solution.gradients}.items()
    }


@pytest.mark.parametrize("name", OTHERS)
def test_balls_meet_those_of_the_cpu(name: str, card: str) -> None:
    """Values within both radii, and radii that are as small."""
    assert_balls_meet(numbers(Fp64System(), name), numbers(CudaFp64System(), name))


@pytest.mark.parametrize("companions", [False, True])
@pytest.mark.parametrize("keys", [17, 23, 32])
@pytest.mark.parametrize("name", DIAGONAL)
def test_many_keys_are_shared_between_threads(
    name: str, keys: int, companions: bool, card: str
) -> None:
    """Sums are in parts then: bounds hold, companions are the same to eleven digits."""
    sizes = {"K": keys, "N": keys, "T": 9}
    here, there = (
        system(companions=companions) for system in (Fp64System, CudaFp64System)
    )
    assert_balls_meet(numbers(here, name, **sizes), numbers(there, name, **sizes))
    op, tensors, switches, bars = arguments(name, **sizes)
    if not companions:
        for contract in map(parse_contract, (*CONTRACTS, CASTS)):
            given = op, tensors, switches, contract, "fp32", bars
            assert_budgets_alike(budget_for(*given), budget_for(*given, device="cuda"))
    elif not op.reads_before:
        for system in (here, there):
            solve(system, op, tensors, switches, stretch=2**10)
        found = cuda_card.on_cpu(there.collected)
        assert (np.abs(here.collected - found) <= 1e-11 * np.abs(found)).all()


def assert_balls_meet(want: dict[str, Any], got: dict[str, Any]) -> None:
    """Values within both radii, and radii that are as small."""
    assert want.keys() == got.keys()
    for tensor, left in want.items():
        right = got[tensor]
        apart = np.abs(left.value - right.value)
        assert (apart <= left.radius + right.radius).all(), tensor
        assert (right.radius <= 1.5 * left.radius + 2.0**-1060).all(), tensor


@pytest.mark.parametrize("keys", [1, 16, 17, 130])
def test_columns_are_those_of_the_cpu(keys: int, card: str) -> None:
    """Whatever the number of keys, with decays of every key and with one for all."""
    rng = np.random.default_rng(keys)
    groups, steps, lanes = 2, 9, 5
    w = rng.uniform(0.5, 1.0, (groups, steps, keys))
    p, q, k, r = rng.normal(size=(4, groups, steps, keys)) / np.sqrt(keys)
    v = rng.normal(size=(groups, steps, lanes))
    state = rng.normal(size=(groups, keys, lanes))
    # Of the last one squares of states underflow, in some columns.
    small = np.where(np.arange(lanes) % 3, 1.0, 2.0**-600)
    for decay, size in ((w, 1.0), (w[:, :, :1], 1.0), (w, small)):
        known = {"w": decay, "p": p, "q": q, "k": k, "r": r, "v": v * size}
        given = {n: Known(x, np.abs(x) * 2.0**-50) for n, x in known.items()}
        found = []
        for machine in (HERE, CARD):
            there = moved if machine is CARD else np.array
            parts = {n: Known(*map(there, x)) for n, x in given.items()}
            start, error = there(state * size), there(np.zeros((groups, lanes)))
            columns = run_columns(
                parts, ROUNDINGS, start, error, keep=True, machine=machine
            )
            found.append([*map(cuda_card.on_cpu, (*columns.o, *columns[1:]))])
            found[-1] += [cuda_card.on_cpu(start), cuda_card.on_cpu(error)]
        for left, right in zip(*found, strict=True):
            apart = np.abs(left - right)
            assert (apart <= 1e-9 * np.abs(left).max()).all()
            if left.shape[-1] == lanes:
                axes = tuple(range(left.ndim - 1))
                assert (apart.max(axes) <= 1e-9 * np.abs(left).max(axes)).all()


def moved(x: FloatArray) -> Any:
    """A copy on the card."""
    return cuda_card.float64(x).copy()


def test_too_many_keys_are_refused(card: str) -> None:
    """The argument, the limit and what came; such a case is judged on the CPU."""
    one = moved(np.ones((1, 1, 257)))
    known = {name: Known(one, one) for name in "wpqkr"}
    known["v"] = Known(moved(np.ones((1, 1, 1))), moved(np.zeros((1, 1, 1))))
    state, error = moved(np.zeros((1, 257, 1))), moved(np.zeros((1, 1)))
    with pytest.raises(KernelUnavailable, match=r"K: expected at most 256 .* got 257"):
        run_columns(known, ROUNDINGS, state, error, keep=False, machine=CARD)


@pytest.mark.parametrize("name", DIAGONAL)
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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (name, text)
        for name in OTHERS
        for text in CONTRACTS
        if OPS[name].diagonal or text.startswith("structure=sequential")
    ],
)
def test_budgets_are_those_of_the_cpu(
    name: str, text: str, card: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several tiles, up to what the card's exp and sums round otherwise."""
    monkeypatch.setattr(engine, "TILE_ENTRIES", 8 * 8 * 5 * 3)
    monkeypatch.setattr("scancheck.bounds.card.cuda_stretch", lambda gradients: 1)
    op, tensors, switches, bars = arguments(name)
    given = op, tensors, switches, parse_contract(text), "fp32", bars
    assert_budgets_alike(budget_for(*given), budget_for(*given, device="cuda"))


def assert_budgets_alike(want: Budget, got: Budget) -> None:
    """Allowances of the same tensors, the same to eleven digits."""
    for left, right in ((want.outputs, got.outputs), (want.gradients, got.gradients)):
        assert left.keys() == right.keys()
        for tensor, allowance in left.items():
            assert_alike(allowance, right[tensor], tensor)


def assert_alike(left: Allowance, right: Allowance, name: str) -> None:
    """The same to eleven digits."""
    for x, y in ((left.error, right.error), (left.magnitude, right.magnitude)):
        with np.errstate(invalid="ignore"):
            close = np.abs(x - y) <= 1e-11 * np.abs(x) + 2.0**-1060
        assert ((x == y) | close).all(), name
    assert np.array_equal(left.overflows, right.overflows), name


@pytest.mark.parametrize("name", DIAGONAL)
def test_moments_are_those_of_the_cpu(name: str, card: str) -> None:
    """sqrt(v) of the outputs; bias in it is a difference of values in fp64."""
    op, tensors, switches, _ = arguments(name)
    given = op, tensors, switches, Contract(), "fp32"
    want, got = moments_for(*given), moments_for(*given, device="cuda")
    assert want is not None
    assert got is not None
    assert want.keys() == got.keys()
    for tensor, root in want.items():
        assert (np.abs(root - got[tensor]) <= 1e-7 * root + 2.0**-1060).all(), tensor
