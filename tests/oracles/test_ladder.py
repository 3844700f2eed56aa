"""The ladder: each rung against the next, and what is certified."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scancheck.ops.linear_scan import LINEAR_SCAN
from scancheck.oracles import ladder
from scancheck.oracles.double_double import DoubleDouble
from scancheck.oracles.double_double_scan import DoubleDoubleSystem
from scancheck.oracles.engine import Solution, solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.oracles.ladder import CERTIFIED_SHARE, Truth, certify, is_certified
from scancheck.oracles.multiprecision import solve_multiprecision


def allowances(problem: Any, bits: int) -> dict[str, np.ndarray]:
    """2**-bits of the largest value of each output and gradient."""
    solution = solve(Fp64System(), *problem.arguments)
    return {
        name: np.full(ball.shape, np.abs(ball.value).max() * 2.0**-bits)
        for name, ball in {**solution.outputs, **solution.gradients}.items()
    }


def rungs(truth: Truth) -> set[str]:
    """The rungs that were needed."""
    return {reference.rung for reference in truth.references.values()}


def certified(truth: Truth) -> bool:
    """Whether every element is certified."""
    return all(r.certified.all() for r in truth.references.values())


def test_fp64_agrees_with_double_double(
    problem: Any, compare: Callable[..., int]
) -> None:
    """Rung R1 and rung R2 lie within their radii of each other."""
    first = solve(Fp64System(), *problem.arguments)
    second = solve(DoubleDoubleSystem(), *problem.arguments)
    assert compare(first, second) == 0
    assert compare(first, second, shrink=1e-6) > 0


def test_double_double_agrees_with_multiprecision(
    problem: Any, compare: Callable[..., int]
) -> None:
    """Rung R2 and rung R4 lie within their radii of each other."""
    second = solve(DoubleDoubleSystem(), *problem.arguments)
    last = solve_multiprecision(*problem.arguments)
    assert compare(second, last) == 0
    assert compare(second, last, shrink=1e-6) > 0


ADVERSARIAL: dict[str, dict[str, np.ndarray]] = {
    "subnormal_state": {
        "a": np.full((1, 40, 3), 0.5),
        "b": np.full((1, 40, 3), 2.0**-1065) * np.arange(1, 4),
    },
    "below_double_double": {
        "a": np.full((1, 60, 2), 2.0**-20 * 1.1),
        "b": np.where(np.arange(60) < 3, 1.1, 0.0)[None, :, None].repeat(2, 2),
    },
    "growth": {"a": np.full((1, 40, 2), 1e7), "b": np.full((1, 40, 2), 1.1)},
    "telescoping": {
        "a": np.ones((1, 8, 2)),
        "b": np.array([1e16, 1.1, -1e16, 1e-9, 1e30, 1.3, -1e30, 7e-5])[
            None, :, None
        ].repeat(2, 2),
    },
    "exact_resets": {
        "a": np.tile([1.1, 0.9, 0.0, 1.0], 10)[None, :, None],
        "b": np.tile([1e200, 1e-200, 1.0], 14)[None, :40, None],
    },
    "closed_gates": {
        "g": np.tile([-1e-8, -745.1, -1e4, -np.inf, 0.0], 5)[None, :, None],
        "b": np.tile([1.1, -3e100, 1e-300], 9)[None, :25, None],
    },
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_rungs_agree_on_adversarial_data(
    name: str, compare: Callable[..., int]
) -> None:
    """Underflow, growth, cancellation, resets and closed gates break no certificate."""
    tensors = ADVERSARIAL[name]
    bars = {"h": np.where(np.arange(tensors["b"].size) % 3, 1.1, -1e-3)}
    bars["h"] = bars["h"].reshape(tensors["b"].shape)
    arguments = (LINEAR_SCAN, tensors, {}, bars)
    with np.errstate(all="ignore"):
        first = solve(Fp64System(), *arguments)
    second = solve(DoubleDoubleSystem(), *arguments)
    last = solve_multiprecision(*arguments)
    assert compare(first, second) == 0
    assert compare(second, last) == 0


def test_loose_allowances_need_no_climb(problem: Any) -> None:
    """An allowance of fp32's size is certified by fp64 alone."""
    truth = certify(*problem.arguments, allowances(problem, 20))
    assert certified(truth)
    assert rungs(truth) == {"fp64"}


def test_tight_allowances_climb(problem: Any) -> None:
    """An allowance of fp64's size is certified by double-double."""
    truth = certify(*problem.arguments, allowances(problem, 60))
    assert certified(truth)
    assert rungs(truth) == {"double_double"}
    for reference in truth.references.values():
        assert (reference.lo != 0.0).any()


def test_tightest_allowances_reach_the_top(linear: Callable[..., Any]) -> None:
    """Where double-double is not enough, exact and mpmath numbers certify."""
    for form, rung in (("a", "exact"), ("g", "multiprecision")):
        problem = linear(6, form=form, T=12)
        allowance = allowances(problem, 92)
        truth = certify(*problem.arguments, allowance)
        assert rungs(truth) - {"double_double"} == {rung}
        assert certified(truth)


def test_cancellation_forces_a_climb() -> None:
    """Telescoping data, whose fp64 radius swamps the result, end certified."""
    b = np.array([1e16, 1.25, -1e16, 1e-9])[None, :, None]
    tensors = {"a": np.ones_like(b), "b": b}
    allowance = {"h": np.full(b.shape, 1e-11), "final_state": np.full((1, 1), 1e-11)}
    truth = certify(LINEAR_SCAN, tensors, {}, None, allowance)
    assert truth.outputs["h"].rung == "double_double"
    assert certified(truth)
    assert truth.outputs["final_state"].hi[0, 0] == 1.25 + 1e-9


def test_allowance_zero_asks_for_the_exact_value() -> None:
    """Dyadic data are certified against an allowance of 0, others are not."""
    a = np.tile([0.5, 1.0, 0.0], 5)[None, :, None]
    allowance = {"h": np.zeros(a.shape), "final_state": np.zeros((1, 1))}
    b = np.arange(1.0, 16.0).reshape(a.shape)
    assert certified(certify(LINEAR_SCAN, {"a": a, "b": b}, {}, None, allowance))
    gated = certify(LINEAR_SCAN, {"g": -a, "b": b}, {}, None, allowance)
    assert gated.outputs["h"].certified[0, 0, 0]  # nothing is carried into it
    assert not gated.outputs["h"].certified[0, 1, 0]


@pytest.mark.filterwarnings("error")
def test_overflow_stays_uncertified() -> None:
    """States beyond float64 are certified at no allowance, the ones before them are."""
    a = np.full((1, 8, 1), 1e60)
    tensors = {"a": a, "b": np.ones_like(a)}
    for size in (1e300, np.inf):
        allowance = {"h": np.full(a.shape, size), "final_state": np.full((1, 1), size)}
        truth = certify(LINEAR_SCAN, tensors, {}, None, allowance)
        finite = np.arange(8) < 6
        assert (truth.outputs["h"].certified[0, :, 0] == finite).all()
        assert not truth.outputs["final_state"].certified.any()


def test_nan_allowances_certify_nothing() -> None:
    """A NaN allowance is met by no radius."""
    a = np.full((1, 3, 1), 0.5)
    truth = certify(
        LINEAR_SCAN, {"a": a, "b": a}, {}, None, {"h": np.full(a.shape, np.nan)}
    )
    assert not truth.outputs["h"].certified.any()
    assert not truth.outputs["final_state"].certified.any()


def test_long_cases_do_not_reach_python_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    """More steps than Python can run in seconds are left uncertified instead."""
    monkeypatch.setattr(ladder, "SLOW_STEPS", 10)
    a = np.full((1, 11, 1), 1 / 3)
    allowance = {"h": np.full(a.shape, 1e-40)}
    truth = certify(LINEAR_SCAN, {"a": a, "b": a}, {}, None, allowance)
    assert truth.outputs["h"].rung == "double_double"
    assert not truth.outputs["h"].certified.all()


def test_only_the_rows_in_need_climb() -> None:
    """Rows that are certified already keep their fp64 reference."""
    a = np.full((3, 6, 1), 1 / 3)
    allowance = {"h": np.full(a.shape, 1.0)}
    allowance["h"][1] = 1e-20
    truth = certify(LINEAR_SCAN, {"a": a, "b": a}, {}, None, allowance)
    h = truth.outputs["h"]
    assert h.certified.all()
    assert (h.lo[[0, 2]] == 0.0).all() and (h.lo[1] != 0.0).any()


def test_only_the_channels_in_need_climb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains that are certified are left out where the others are more than enough."""
    monkeypatch.setattr(ladder, "SLOW_STEPS", 2 * 6 * 5)
    a = np.full((3, 6, 4), 1 / 3)
    bars = {"h": np.full(a.shape, 1.1)}
    allowance = {name: np.ones(a.shape) for name in ("h", "a", "b")}
    allowance["h"][1, 4, 2] = allowance["a"][1, 3, 0] = 2e-29
    truth = certify(LINEAR_SCAN, {"a": a, "b": a}, {}, bars, allowance)
    assert all(truth.references[name].certified.all() for name in allowance)
    assert truth.outputs["h"].rung == "exact"
    assert not truth.outputs["h"].lo[:, :, [1, 3]].any()


def near_the_end_of_fp64(steps: int) -> tuple[Any, ...]:
    """Drives of 1e-310, decays of 1e-300 and 1, cotangents of 1e-10, two chains."""
    rng = np.random.default_rng(8)
    shape = (1, steps, 2)
    tensors = {
        "g": rng.choice([-1e-3, -0.5, -690.0, -730.0], shape, p=[0.4, 0.4, 0.1, 0.1]),
        "b": rng.normal(size=shape) * 10.0 ** rng.integers(-312, 2, shape),
    }
    bars = {"h": rng.normal(size=shape) * 10.0 ** rng.integers(-200, 0, shape)}
    return LINEAR_SCAN, tensors, {}, bars


def test_long_cases_are_certified_near_the_end_of_fp64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What underflows in double-double needs no rung in Python, at any length."""
    monkeypatch.setattr(ladder, "SLOW_STEPS", 0)
    problem = near_the_end_of_fp64(600)
    fp64 = solve(Fp64System(), *problem)
    allowance = {
        name: np.abs(number.value) * 2.0**-52 + 40 * 2.0**-1074
        for name, number in {**fp64.outputs, **fp64.gradients}.items()
    }
    truth = certify(*problem, allowance)
    assert certified(truth)
    assert "wide_double" in rungs(truth)
    with monkeypatch.context() as patch:
        patch.setattr(ladder, "RUNGS", ladder.RUNGS[:1])
        assert not certified(certify(*problem, allowance))


def test_what_is_beyond_fp64_does_not_climb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rungs in Python are not asked for values that no float64 can hold."""

    def asked(*arguments: Any) -> Solution:
        raise AssertionError("a slow rung was asked")

    slow = [(name, applies, asked) for name, applies, _ in ladder.RUNGS[2:]]
    monkeypatch.setattr(ladder, "RUNGS", (*ladder.RUNGS[:2], *slow))
    a = np.full((1, 8, 1), 1e60)
    allowance = {"h": np.full(a.shape, np.inf), "final_state": np.full((1, 1), np.inf)}
    truth = certify(LINEAR_SCAN, {"a": a, "b": np.ones_like(a)}, {}, None, allowance)
    assert truth.outputs["h"].certified[0, :, 0].tolist() == [True] * 6 + [False] * 2


def test_a_given_first_solution_is_used(problem: Any) -> None:
    """A solution of the fp64 rung at hand is not computed again."""
    first = solve(Fp64System(), *problem.arguments)
    truth = certify(*problem.arguments, allowances(problem, 20), first=first)
    for name, ball in first.outputs.items():
        assert truth.outputs[name].hi is ball.value


def test_contradicting_rungs_certify_nothing(
    linear: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rung that claims another value than the one below takes the certificate."""
    problem = linear(7, T=5)

    def wrong(*arguments: Any) -> Solution:
        right = solve(DoubleDoubleSystem(), *arguments)
        moved = {
            name: DoubleDouble(x.hi + 1e-3, x.lo, x.radius)
            for name, x in right.outputs.items()
        }
        return Solution(outputs=moved, gradients=right.gradients)

    rung = ("double_double", lambda *arguments: True, wrong)
    monkeypatch.setattr(ladder, "RUNGS", (rung,))
    truth = certify(*problem.arguments, allowances(problem, 60))
    assert not truth.outputs["h"].certified.any()
    assert truth.gradients["b"].certified.all()


def test_share_is_the_declared_one() -> None:
    """A radius of 2**-10 of the allowance is certified, a larger one is not."""
    a = np.full((1, 2, 1), 1 / 3)
    first = solve(Fp64System(), LINEAR_SCAN, {"a": a, "b": a}, {})
    radius = certify(LINEAR_SCAN, {"a": a, "b": a}, {}, None, {}).outputs["h"].radius
    for factor, expected in ((1.0, True), (1.0 - 2.0**-52, False)):
        allowance = {"h": radius / CERTIFIED_SHARE * factor}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ladder, "RUNGS", ())
            truth = certify(
                LINEAR_SCAN, {"a": a, "b": a}, {}, None, allowance, first=first
            )
        assert truth.outputs["h"].certified[0, 1, 0] == expected


def test_the_last_units_of_fp64_are_close_enough() -> None:
    """16 of the smallest subnormals certify any allowance but zero, 17 do not."""
    unit = 2.0**-1074
    radius = np.array([16.0, 16.0, 17.0]) * unit
    allowed = np.array([1.0, 0.0, 1.0]) * unit
    assert is_certified(radius, allowed).tolist() == [True, False, False]
