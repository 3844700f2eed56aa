"""Rung R0: exact dyadic numbers, for ops without functions.

Every stored value is an integer times a power of two, and sums and products of such
numbers are too. mpmath's arithmetic is exact when it is given no precision, so that
these are its numbers with as many bits as it takes: the length of a state grows by the
length of a decay with every step.
"""

from collections.abc import Mapping
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from scancheck.errors import OracleUncertain
from scancheck.ops.normal_form import Op
from scancheck.oracles.engine import Solution, solve
from scancheck.oracles.multiprecision import MpNumber, constant, to_double_double
from scancheck.oracles.systems import GenericSystem

FloatArray = NDArray[np.float64]

# More than any sum or product asks for, so that each of them counts as exact.
UNLIMITED_BITS = 2**62


class ExactNumber(MpNumber):
    """Dyadic numbers of any length and radius zero."""

    __slots__ = ()

    def exp(self) -> NoReturn:
        """Raises OracleUncertain, as every function does: no result is dyadic."""
        raise OracleUncertain(
            "exact rung: expected an op of sums and products alone; got one with "
            "exp, softplus, sigmoid or a quotient; use another rung"
        )

    softplus = sigmoid = silu = silu_slope = reciprocal = exp


class ExactSystem(GenericSystem):
    """The recurrence step by step in exact dyadic numbers."""

    def constant(self, values: FloatArray) -> ExactNumber:
        """Stored values as exact numbers."""
        value, radius = constant(values, UNLIMITED_BITS).components
        return ExactNumber(value, radius, UNLIMITED_BITS)


def solve_exact(
    op: Op,
    tensors: Mapping[str, FloatArray],
    switches: Mapping[str, bool],
    cotangents: Mapping[str, FloatArray] | None = None,
) -> Solution:
    """Exact outputs and gradients, as double-doubles whose radius is what they drop.

    Raises OracleUncertain when the op needs more than sums and products.
    """
    solution = solve(ExactSystem(), op, tensors, switches, cotangents)
    return Solution(
        outputs={n: to_double_double(x) for n, x in solution.outputs.items()},
        gradients={n: to_double_double(x) for n, x in solution.gradients.items()},
    )


__all__ = ["ExactNumber", "ExactSystem", "solve_exact"]
