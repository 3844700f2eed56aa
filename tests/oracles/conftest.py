"""Cases of both ops, and the one comparison of two rungs, for all oracle tests."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scancheck.ops.linear_scan import LINEAR_SCAN
from scancheck.ops.normal_form import Op, spec_of
from scancheck.ops.selective_scan import SELECTIVE_SCAN
from scancheck.oracles.engine import Solution

# The modules of `recurrences` are beside these tests.
sys.path.insert(0, str(Path(__file__).parent))

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Problem:
    """What a rung is asked to solve."""

    op: Op
    tensors: dict[str, FloatArray]
    switches: dict[str, bool]
    cotangents: dict[str, FloatArray]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of a rung's solve function, in order."""
        return self.op, self.tensors, self.switches, self.cotangents


def linear_problem(
    seed: int, form: str = "a", T: int = 23, state: bool = True
) -> Problem:
    """linear_scan on a mix of decays from 0 over near one to growth, B = 2, D = 5."""
    rng = np.random.default_rng(seed)
    B, D = 2, 5
    decay = rng.choice([0.0, -0.7, 0.999, 1.0, 1.01, 0.3], (B, T, D))
    decay = decay * rng.uniform(0.999, 1.001, (B, T, D))
    gate = -rng.exponential(size=(B, T, D)) * 10.0 ** rng.integers(-4, 3, (B, T, D))
    tensors = {"a": decay} if form == "a" else {"g": gate}
    tensors["b"] = rng.normal(size=(B, T, D)) * 10.0 ** rng.integers(-6, 7, (B, T, D))
    if state:
        tensors["initial_state"] = rng.normal(size=(B, D))
    cotangents = {
        "h": rng.normal(size=(B, T, D)),
        "final_state": rng.normal(size=(B, D)),
    }
    return Problem(LINEAR_SCAN, tensors, {}, cotangents)


def selective_problem(seed: int, keys: str = "time", T: int = 9) -> Problem:
    """selective_scan with every optional tensor, B = 2, D = 4, N = 3."""
    rng = np.random.default_rng(seed)
    B, D, N = 2, 4, 3
    shape = {"time": (B, N, T), "grouped": (B, 2, N, T), "constant": (D, N)}[keys]
    tensors = {
        "u": rng.normal(size=(B, D, T)),
        "delta": rng.normal(size=(B, D, T)) * 4,
        "A": -rng.uniform(0.01, 16, (D, N)),
        "B": rng.normal(size=shape),
        "C": rng.normal(size=shape),
        "D": rng.normal(size=D),
        "z": rng.normal(size=(B, D, T)) * 4,
        "delta_bias": rng.normal(size=D),
        "initial_state": rng.normal(size=(B, D, N)),
    }
    cotangents = {
        "y": rng.normal(size=(B, D, T)),
        "last_state": rng.normal(size=(B, D, N)),
    }
    return Problem(SELECTIVE_SCAN, tensors, {"delta_softplus": True}, cotangents)


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "linear_a": linear_problem,
    "linear_a_from_zero": lambda seed: linear_problem(seed, state=False),
    "linear_g": lambda seed: linear_problem(seed, form="g"),
    "selective_time": selective_problem,
    "selective_grouped": lambda seed: selective_problem(seed, "grouped"),
    "selective_constant": lambda seed: selective_problem(seed, "constant"),
}


@pytest.fixture(params=PROBLEMS)
def problem(request: pytest.FixtureRequest) -> Problem:
    """A problem of each kind, with all of its gradients."""
    return PROBLEMS[request.param](20)


@pytest.fixture
def linear() -> Callable[..., Problem]:
    """The maker of linear_scan problems."""
    return linear_problem


def words(number: Any) -> tuple[FloatArray, FloatArray, FloatArray]:
    """hi, lo and a rigorous radius of a ball, double-double or reference."""
    # Imported here: compiled modules are not needed to collect the tests.
    from scancheck.oracles import ball, double_double

    if isinstance(number, ball.Ball):
        return number.value, np.zeros(number.shape), ball.certified_radius(number)
    if isinstance(number, double_double.DoubleDouble):
        return number.hi, number.lo, double_double.certified_radius(number)
    return number.hi, number.lo, number.radius


def contradictions(
    left: Mapping[str, Any], right: Mapping[str, Any], shrink: float = 1.0
) -> int:
    """How many elements lie further apart than the sum of their radii times shrink."""
    count = 0
    assert set(left) == set(right)
    for name, number in left.items():
        columns = [*words(number), *words(right[name])]
        for hi, lo, r, other_hi, other_lo, other_r in zip(
            *(column.reshape(-1).tolist() for column in columns), strict=True
        ):
            if np.isinf(r) or np.isinf(other_r):
                continue
            apart = (
                Fraction(hi) + Fraction(lo) - Fraction(other_hi) - Fraction(other_lo)
            )
            reach = (Fraction(r) + Fraction(other_r)) * Fraction(shrink)
            count += abs(apart) > reach
    return count


def tensors_of(solution: Solution) -> dict[str, Any]:
    """Outputs and gradients by name."""
    return {**solution.outputs, **solution.gradients}


@pytest.fixture
def compare() -> Callable[..., int]:
    """The number of contradictions between two solutions."""

    def counted(left: Solution, right: Solution, shrink: float = 1.0) -> int:
        return contradictions(tensors_of(left), tensors_of(right), shrink)

    return counted


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the engine cut a problem into tiles of so many steps."""
    from scancheck.oracles import engine

    def cut(problem: Problem, steps: int) -> None:
        sizes: dict[str, int] = {}
        for name, values in problem.tensors.items():
            axes = spec_of(problem.op, name, values.ndim).axes
            sizes |= dict(zip(axes, values.shape, strict=True))
        groups, keys, lanes = problem.op.group_shape(sizes)
        monkeypatch.setattr(engine, "TILE_ENTRIES", steps * groups * keys * lanes)

    return cut
