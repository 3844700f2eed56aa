"""The exact dyadic rung."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from scancheck.errors import OracleUncertain
from scancheck.oracles.exact import ExactSystem, solve_exact
from scancheck.oracles.multiprecision import solve_multiprecision


def test_forward_is_the_recurrence_over_fractions(linear: Callable[..., Any]) -> None:
    """Outputs are the recurrence in rational arithmetic, digit for digit."""
    problem = linear(1, T=40)
    a, b, state = (problem.tensors[n] for n in ("a", "b", "initial_state"))
    solution = solve_exact(*problem.arguments)
    got, last = solution.outputs["h"], solution.outputs["final_state"]
    for row in np.ndindex(state.shape):
        h = Fraction(state[row])
        for t in range(40):
            h = Fraction(a[row[0], t, row[1]]) * h + Fraction(b[row[0], t, row[1]])
            at = (row[0], t, row[1])
            left = abs(h - Fraction(got.hi[at]) - Fraction(got.lo[at]))
            assert got.hi[at] == float(h)
            assert left <= Fraction(got.radius[at])
            assert (left == 0) == (got.radius[at] == 0)
        assert last.hi[row] == float(h)


def test_gradients_are_the_adjoint_over_fractions(linear: Callable[..., Any]) -> None:
    """db, da and the gradient of the initial state follow the adjoint recurrence."""
    problem = linear(2, T=12)
    a, b, state = (problem.tensors[n] for n in ("a", "b", "initial_state"))
    bars = problem.cotangents
    gradients = solve_exact(*problem.arguments).gradients
    for i, j in np.ndindex(state.shape):
        states = [Fraction(state[i, j])]
        for t in range(12):
            states.append(Fraction(a[i, t, j]) * states[-1] + Fraction(b[i, t, j]))
        carry = Fraction(bars["final_state"][i, j])
        for t in reversed(range(12)):
            carry += Fraction(bars["h"][i, t, j])
            assert gradients["b"].hi[i, t, j] == float(carry)
            assert gradients["a"].hi[i, t, j] == float(carry * states[t])
            carry *= Fraction(a[i, t, j])
        assert gradients["initial_state"].hi[i, j] == float(carry)


def test_exact_agrees_with_multiprecision(
    linear: Callable[..., Any], compare: Callable[..., int]
) -> None:
    """The exact rung lies within the radii of mpmath at 100 bits."""
    problem = linear(3, T=60)
    assert (
        compare(
            solve_exact(*problem.arguments),
            solve_multiprecision(*problem.arguments, bits=100),
        )
        == 0
    )


def test_small_integers_have_radius_zero(linear: Callable[..., Any]) -> None:
    """Results of up to 106 bits are given exactly."""
    op = linear(0).op
    tensors = {"a": np.full((1, 60, 1), 3.0), "b": np.ones((1, 60, 1))}
    solution = solve_exact(op, tensors, {}, {"h": np.ones((1, 60, 1))})
    words = solution.outputs["h"]
    assert (words.radius == 0.0).all()
    assert Fraction(words.hi[0, 59, 0]) + Fraction(words.lo[0, 59, 0]) == sum(
        3**k for k in range(60)
    )


def test_functions_are_refused(linear: Callable[..., Any]) -> None:
    """An op with exp gets one clear message."""
    with pytest.raises(OracleUncertain, match="sums and products"):
        solve_exact(*linear(0, form="g").arguments)


def test_one_minus_and_sums() -> None:
    """1 - x and sums over no, one and two axes are exact."""
    number = ExactSystem().constant(np.arange(6.0).reshape(1, 2, 3))
    flat = ExactSystem().constant(np.array([15.0]))
    assert (number.sum((1, 2)).components[0] == flat.components[0]).all()
    assert number[:, :0].sum(1).shape == (1, 3)
    less = ExactSystem().constant(np.array([-14.0]))
    assert (flat.one_minus().components[0] == less.components[0]).all()
