"""An independent cross-check: Arb balls of python-flint, where it is installed.

Johansson, "Arb: efficient arbitrary-precision midpoint-radius interval arithmetic",
IEEE Trans. Computers 66 (2017). Only the engine is shared with the other rungs.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from importlib.util import find_spec
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from scancheck.ops.normal_form import Op
from scancheck.oracles.engine import Solution, solve
from scancheck.oracles.numbers import ArrayNumber
from scancheck.oracles.systems import GenericSystem

FloatArray = NDArray[np.float64]


def available() -> str | None:
    """None where Arb balls can be used, and otherwise the reason why not."""
    if find_spec("flint") is None:
        return "python-flint is not installed: pip install scancheck[flint]"
    return None


class FlintBall(ArrayNumber):
    """One object array of `flint.arb`, whose arithmetic brings its own radii."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        return self.like(self.components[0] + other.components[0])

    def __mul__(self, other: Self) -> Self:
        return self.like(self.components[0] * other.components[0])

    def __neg__(self) -> Self:
        return self.like(-self.components[0])

    def one_minus(self) -> Self:
        """1 - x."""
        return self.like(1 - self.components[0])

    def exp(self) -> Self:
        """exp(x)."""
        return self._mapped(lambda x: x.exp())

    def softplus(self) -> Self:
        """log(1 + exp(x))."""
        return self._mapped(lambda x: x.exp().log1p())

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x))."""
        return self._mapped(lambda x: 1 / (1 + (-x).exp()))

    def silu(self) -> Self:
        """x sigmoid(x)."""
        return self * self.sigmoid()

    def silu_slope(self) -> Self:
        """d silu / dx = s (1 + x (1 - s)) with s = sigmoid(x), 1 - s = sigmoid(-x)."""
        rise = self * (-self).sigmoid()
        return self.sigmoid() * self.like(1 + rise.components[0])

    def reciprocal(self) -> Self:
        """1 / x, a NaN where the ball holds zero."""
        return self._mapped(lambda x: 1 / x)

    def maximum(self, other: Self) -> Self:
        """The larger one."""
        larger = np.frompyfunc(lambda x, y: x.max(y), 2, 1)
        values = larger(self.components[0], other.components[0])
        return self.like(np.asarray(values, dtype=object))

    def exceeds(self, other: Self) -> Self:
        """1 where x > y, 0 where not, and all between where that is open."""
        return (self + -other)._mapped(_sign)

    def held(self) -> Self:
        """The centre, of radius zero."""
        return self._mapped(lambda x: x.mid())

    def sum(self, axis: int | tuple[int, ...]) -> Self:
        """The sum over axes."""
        return self.like(np.asarray(self.components[0].sum(axis), dtype=object))

    def _mapped(self, function: Callable[[Any], Any]) -> Self:
        values = np.frompyfunc(function, 1, 1)(self.components[0])
        return self.like(np.asarray(values, dtype=object))


def _sign(apart: Any) -> Any:
    """1 for a ball above zero, 0 for one that is not, else both."""
    import flint

    if apart > 0:
        return flint.arb(1)
    return flint.arb(0) if apart <= 0 else flint.arb(0.5, 0.5)


class FlintSystem(GenericSystem):
    """The recurrence step by step in Arb balls."""

    def constant(self, values: FloatArray) -> FlintBall:
        """Stored values, known exactly."""
        import flint

        balls = np.frompyfunc(lambda x: flint.arb(float(x)), 1, 1)(values)
        return FlintBall(np.asarray(balls, dtype=object))


def solve_flint(
    op: Op,
    tensors: Mapping[str, FloatArray],
    switches: Mapping[str, bool],
    cotangents: Mapping[str, FloatArray] | None = None,
    bits: int = 256,
) -> Solution:
    """Outputs and gradients as Arb balls; python-flint has to be `available`."""
    import flint

    with flint.ctx.workprec(bits):
        return solve(FlintSystem(), op, tensors, switches, cotangents)


def ends(ball: Any) -> tuple[Fraction, Fraction]:
    """The exact centre and radius of a finite Arb ball."""
    return _fraction(ball.mid()), _fraction(ball.rad())


def _fraction(point: Any) -> Fraction:
    """The exact value of an Arb number of radius zero."""
    mantissa, exponent = point.man_exp()
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)


__all__ = ["FlintBall", "FlintSystem", "available", "ends", "solve_flint"]
