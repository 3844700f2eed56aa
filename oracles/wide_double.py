"""Rung R3: double-double numbers that do not underflow, and their System.

Where double-double is not close enough because a product, a decay or a gate lies near
2**-1074, the same algorithms are run with an exponent beside the words (`wide_word`).
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from scancheck.ops.normal_form import Op
from scancheck.oracles import wide_loops
from scancheck.oracles.double_double import (
    INFLATION,
    DoubleDouble,
    Loops,
    WordNumber,
)
from scancheck.oracles.double_double_scan import DoubleDoubleSystem
from scancheck.oracles.engine import Solution, solve
from scancheck.oracles.threads import share

FloatArray = NDArray[np.float64]
Parts = tuple[NDArray[Any], ...]


class WideDouble(WordNumber):
    """hi, lo, radius and exponent: (hi + lo) 2**exponent, within radius 2**exponent."""

    __slots__ = ()

    loops = Loops(
        wide_loops.add_all,
        wide_loops.multiply_all,
        wide_loops.exp_all,
        wide_loops.softplus_all,
        wide_loops.sigmoid_all,
        wide_loops.reciprocal_all,
    )

    @property
    def exponent(self) -> NDArray[np.int64]:
        """The exponents of 2."""
        return self.components[3]

    def exactly(self, values: FloatArray) -> Self:
        """Stored values, known exactly; NaN and infinity are not known at all."""
        flat = np.ascontiguousarray(values, dtype=np.float64).reshape(-1)
        out = _empty(flat.size)
        wide_loops.stored_all(flat, out)
        return self.like(*(part.reshape(np.shape(values)) for part in out))


_nothing = np.zeros(0)
_KIND = WideDouble(_nothing, _nothing, _nothing, np.zeros(0, np.int64))


class WideSystem(DoubleDoubleSystem):
    """The scan and its adjoint over wide numbers."""

    by_columns = False  # radii have exponents of their own

    def constant(self, values: FloatArray) -> WideDouble:
        """Stored values as wide numbers of radius zero."""
        return _KIND.exactly(values)

    def run(
        self, w: Any, v: Any, k: Any, r: Any, state: Any, keep: bool
    ) -> tuple[Any, Any, Any]:
        """o [G, T, L], the last state [G, K, L], and all states where `keep`."""
        groups, keys, lanes = state.shape
        steps = v.shape[1]
        moved = tuple(
            np.array(part, order="C").reshape(groups, 1, keys, lanes)
            for part in state.components
        )
        out = _empty(groups, steps, 1, lanes)
        states = _empty(groups, steps + 1 if keep else 0, keys, lanes)
        decay, value, key, readout = map(_contiguous, (w, v[:, :, None], k, r))

        def task(begin: int, stop: int) -> None:
            wide_loops.scan(
                begin,
                stop,
                decay,
                value,
                key,
                readout,
                k is not None,
                r is not None,
                moved,
                out,
                states,
            )

        share(groups * lanes, steps * groups * keys * lanes, task)
        return (
            WideDouble(*out)[:, :, 0],
            WideDouble(*moved)[:, 0],
            WideDouble(*states),
        )


def solve_wide(
    op: Op,
    tensors: Mapping[str, FloatArray],
    switches: Mapping[str, bool],
    cotangents: Mapping[str, FloatArray] | None = None,
) -> Solution:
    """Outputs and gradients as double-doubles that were computed without underflow."""
    solution = solve(WideSystem(), op, tensors, switches, cotangents)
    return Solution(
        outputs={n: to_double_double(x) for n, x in solution.outputs.items()},
        gradients={n: to_double_double(x) for n, x in solution.gradients.items()},
    )


def to_double_double(number: WideDouble) -> DoubleDouble:
    """The words in fp64's own range; the radii take in what that leaves of them.

    They are inflated here already, for a radius rounded to a few of the smallest
    subnormals has no room for it later. What lies beyond fp64 for certain is infinite,
    with an infinite radius.
    """
    hi, lo, radius, exponent = number.components
    e = np.clip(exponent, -4000, 4000)
    # A word that loses nothing comes back from fp64 as it was.
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        words = []
        left = radius * INFLATION
        for word in (hi, lo):
            stored = _scaled(word, e)
            left = left + np.abs(word - _scaled(stored, -e))
            words.append(stored)
        left = np.where(left > radius, left * INFLATION, left)
        outer = _scaled(left, e)
        short = _scaled(outer, -e) < left
        outer = np.where(short, np.nextafter(outer, np.inf), outer)
        beyond = np.isinf(_scaled(np.abs(hi) * (1.0 - 2.0**-50) - radius * 2.0, e))
        beyond &= np.abs(hi) > radius * 4.0
    known = np.isfinite(words[0]) & np.isfinite(words[1]) & ~np.isnan(outer)
    return DoubleDouble(
        np.where(beyond, np.copysign(np.inf, hi), np.where(known, words[0], 0.0)),
        np.where(known, words[1], 0.0),
        np.where(known & ~beyond, outer, np.inf),
    )


def _scaled(word: FloatArray, exponent: NDArray[np.int64]) -> FloatArray:
    """word 2**exponent, rounded once."""
    return np.asarray(np.ldexp(word, exponent))


def _empty(*shape: int) -> Parts:
    """Component arrays of wide numbers."""
    return (*(np.empty(shape) for _ in range(3)), np.empty(shape, np.int64))


def _contiguous(number: Any) -> Parts:
    """Component arrays for the compiled scan; empty ones for an absent number."""
    if number is None:
        return _empty(0, 0, 0, 0)
    return tuple(
        np.require(part, requirements=("C", "W")) for part in number.components
    )


__all__ = ["WideDouble", "WideSystem", "solve_wide", "to_double_double"]
