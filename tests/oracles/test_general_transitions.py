"""Rank-one transitions, value-side decays and early reads in the certified systems."""

from typing import Any

import numpy as np
import pytest
from recurrences.bare import FloatArray, bare_op, by_autograd, drawn

from scancheck.oracles import engine
from scancheck.oracles.ball import Ball, certified_radius, exact_ball
from scancheck.oracles.columns import gamma
from scancheck.oracles.double_double_scan import DoubleDoubleSystem
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.oracles.multiprecision import solve_multiprecision
from scancheck.oracles.systems import GenericSystem
from scancheck.oracles.transition_norm import transition_norm

SIZES = {"G": 2, "T": 11, "K": 3, "L": 5, "Kw": 3}
PARTS = [
    pytest.param(parts, id="+".join(parts))
    for parts in (("z",), ("before",), ("z", "before"), ("rank",), ("rank", "before"))
]


class Balls(GenericSystem):
    """The definition in fp64 balls."""

    def constant(self, values: FloatArray) -> Any:
        return exact_ball(values)


def all_of(solution: engine.Solution) -> dict[str, Any]:
    """Outputs and gradients."""
    return {**solution.outputs, **solution.gradients}


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("entries", [1, 60, 10**6])
def test_certified_radii_hold_the_exact_result(
    parts: tuple[str, ...], entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both systems, in tiles of any length, against 300 bits."""
    op = bare_op(*parts)
    tensors, bars = drawn(op, SIZES, 1)
    exact = all_of(solve_multiprecision(op, tensors, {}, bars, bits=300))
    monkeypatch.setattr(engine, "TILE_ENTRIES", entries)
    for system, share in ((Fp64System(), 1e-11), (DoubleDoubleSystem(), 1e-26)):
        found = all_of(solve(system, op, tensors, {}, bars))
        assert set(found) == set(exact)
        for name, number in found.items():
            if isinstance(number, Ball):
                value, low, radius = number.value, 0.0, certified_radius(number)
            else:
                value, low, radius = number.hi, number.lo, number.radius
            off = np.abs((value - exact[name].hi) + (low - exact[name].lo))
            assert (off <= radius * (1 + 1e-9) + exact[name].radius).all(), name
            size = np.abs(exact[name].hi).max()
            assert (radius <= share * size).all(), (name, float(radius.max()), size)


@pytest.mark.parametrize("parts", PARTS)
def test_long_sequences_stay_certified(parts: tuple[str, ...]) -> None:
    """A contracting transition does not widen radii from step to step."""
    op = bare_op(*parts)
    tensors, bars = drawn(op, SIZES | {"T": 600, "K": 16, "Kw": 16}, 2)
    found = all_of(solve(Fp64System(), op, tensors, {}, bars))
    want = by_autograd(tensors, bars, before="before" in parts)
    for name, ball in found.items():
        radius = certified_radius(ball)
        assert (radius <= 1e-10 * np.abs(want[name]).max()).all(), name
        # The loop's own roundings are those of the scan, within its radius.
        assert (np.abs(ball.value - want[name]) <= 4 * radius).all(), name


def test_double_doubles_stay_certified_too() -> None:
    """Norms of columns are carried there as well, for kernels in fp64."""
    op = bare_op("rank")
    tensors, bars = drawn(op, SIZES | {"T": 300, "K": 8, "Kw": 8}, 6)
    exact = all_of(solve_multiprecision(op, tensors, {}, bars, bits=900))
    found = all_of(solve(DoubleDoubleSystem(), op, tensors, {}, bars))
    for name, number in found.items():
        off = np.abs((number.hi - exact[name].hi) + (number.lo - exact[name].lo))
        # Multiprecision carries its radii entry by entry: 900 bits are enough for 300
        # steps. What is left is the distance to two float64.
        size = np.abs(exact[name].hi).max()
        assert (exact[name].radius <= 1e-31 * size).all()
        assert (off <= number.radius + exact[name].radius).all(), name
        assert (number.radius <= 1e-25 * size).all(), name


@pytest.mark.parametrize("system", [Fp64System, DoubleDoubleSystem])
@pytest.mark.parametrize("power", [-600, -1040])
def test_radii_hold_where_squares_of_states_underflow(system: Any, power: int) -> None:
    """States of 2^-600, and below the normal range: norms of columns are no zeros."""
    op = bare_op("rank")
    tensors, bars = drawn(op, SIZES | {"T": 40, "K": 8, "Kw": 8}, 7)
    for name in ("v", "s"):
        tensors[name] = tensors[name] * 2.0**power
    exact = all_of(solve_multiprecision(op, tensors, {}, bars, bits=300))
    for name, number in all_of(solve(system(), op, tensors, {}, bars)).items():
        ball = isinstance(number, Ball)
        value, low = (number.value, 0.0) if ball else (number.hi, number.lo)
        off = np.abs((value - exact[name].hi) + (low - exact[name].lo))
        assert (off <= number.radius * (1 + 1e-9) + exact[name].radius).all(), name
        size = np.abs(exact[name].hi).max()
        assert (number.radius <= 1e-11 * size + 2.0**-1050).all(), name


def test_a_decay_for_all_keys_or_one_each() -> None:
    """w [G, T, 1, 1] and the same values written out for every key."""
    op = bare_op("rank")
    tensors, bars = drawn(op, SIZES | {"Kw": 1}, 3)
    wide = tensors | {"w": np.repeat(tensors["w"], SIZES["K"], 2)}
    one, each = (all_of(solve(Fp64System(), op, t, {}, bars)) for t in (tensors, wide))
    for name in set(one) - {"w"}:
        assert np.array_equal(one[name].value, each[name].value), name
    summed = each["w"].value.sum(2, keepdims=True)
    assert (np.abs(summed - one["w"].value) <= 1e-13 * np.abs(summed).max()).all()


def test_what_no_system_certifies_is_refused() -> None:
    """A value-side decay beside a rank-one transition is never left out."""
    op = bare_op("rank", "z")
    tensors, bars = drawn(op, SIZES, 4)
    with pytest.raises(NotImplementedError, match="no value-side decay"):
        solve(Fp64System(), op, tensors, {}, bars)


@pytest.mark.parametrize("kind", ["delta", "any", "contracting", "diagonal", "one"])
def test_transition_norm_is_a_tight_upper_bound(kind: str) -> None:
    """Against singular values; never below the largest |w| or them."""
    rng = np.random.default_rng(5)
    for _ in range(40):
        K, n = int(rng.integers(1, 20)), 30
        w = np.exp(-rng.exponential(size=(n, K)) * 10.0 ** rng.integers(-6, 3))
        w *= rng.choice([-1.0, 1.0], (n, K))
        k = rng.normal(size=(n, K))
        k /= np.linalg.norm(k, axis=1, keepdims=True)
        p, q = -rng.uniform(0, 2, (n, 1)) * k, w * k
        if kind == "any":
            p = rng.normal(size=(n, K)) * 10.0 ** rng.integers(-8, 4)
            q = rng.normal(size=(n, K))
        elif kind == "contracting":
            p, q = k * rng.uniform(0, 1, (n, K)), -k
        elif kind == "diagonal":
            p = np.zeros_like(k)
        elif kind == "one":
            w = w[:, :1]
            q = w * k
        matrix = p[:, :, None] * q[:, None, :]
        matrix[:, np.arange(K), np.arange(K)] += w
        exact = np.linalg.norm(matrix, ord=2, axis=(1, 2))
        exact = np.maximum(exact, np.abs(w).max(1))
        found = transition_norm(w, p, q)
        assert (found >= exact * (1 - 1e-13)).all()
        assert (found <= exact * (1 + 2e-8) + 1e-75).all()


def test_transition_norm_of_what_is_not_finite() -> None:
    """Infinite, so that nothing is certified by it."""
    ones = np.ones((3, 2))
    for bad in (np.nan, np.inf, 1e200):
        p = ones.copy()
        p[1, 0] = bad
        found = transition_norm(ones, p, ones * 1e200)
        assert np.isinf(found[1])


def test_gamma_ends() -> None:
    """n u / (1 - n u), and infinite from n u = 1 on."""
    assert gamma(4, 0.125) == 1.0
    assert gamma(8, 0.125) == np.inf
