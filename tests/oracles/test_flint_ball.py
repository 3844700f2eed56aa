"""Arb balls as a cross-check from outside, where python-flint is installed."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from scancheck.oracles import flint_ball
from scancheck.oracles.double_double import certified_radius
from scancheck.oracles.double_double_scan import DoubleDoubleSystem
from scancheck.oracles.engine import Solution, solve
from scancheck.oracles.flint_ball import ends, solve_flint
from scancheck.oracles.multiprecision import solve_multiprecision


def outside(ours: Solution, theirs: Solution, shrink: Fraction = Fraction(1)) -> int:
    """How many elements lie further from the Arb ball than both radii together."""
    count = 0
    balls = {**theirs.outputs, **theirs.gradients}
    for name, number in {**ours.outputs, **ours.gradients}.items():
        radius = certified_radius(number)
        for index in np.ndindex(number.shape):
            centre, reach = ends(balls[name].components[0][index])
            value = Fraction(number.hi[index]) + Fraction(number.lo[index])
            count += abs(value - centre) > (reach + Fraction(radius[index])) * shrink
    return count


def test_rungs_agree_with_arb(problem: Any) -> None:
    """Double-double and mpmath lie within their radii of Arb's, gradients included."""
    pytest.importorskip("flint")
    theirs = solve_flint(*problem.arguments)
    for ours in (
        solve(DoubleDoubleSystem(), *problem.arguments),
        solve_multiprecision(*problem.arguments),
    ):
        assert outside(ours, theirs) == 0
        assert outside(ours, theirs, Fraction(1, 10**6)) > 0


def test_precision_is_restored(problem: Any) -> None:
    """Solving leaves the precision of python-flint as it was."""
    flint = pytest.importorskip("flint")
    before = flint.ctx.prec
    solve_flint(*problem.arguments, bits=100)
    assert flint.ctx.prec == before


def test_missing_package_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without python-flint the answer is how to get it, not an exception."""
    monkeypatch.setattr(flint_ball, "find_spec", lambda name: None)
    assert "pip install" in (flint_ball.available() or "")
