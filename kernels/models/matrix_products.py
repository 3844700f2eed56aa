"""Matrix products as matrix units form them: rounded operands, a longer accumulator.

    y = x_1 y_1 + .. + x_n y_n, from the first term upwards

Operands are rounded to their own format first. A product is rounded to nearest in the
accumulator's format, where one of 16-bit or tf32 operands is exact in fp32 as long as
it is normal. Sums are rounded to nearest, or truncated as tensor cores do (Fasi,
Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021).
"""

from dataclasses import dataclass

import numpy as np

from scancheck.formats import Format
from scancheck.kernels.models.arithmetic import Arithmetic, Array


def transposed(x: Array) -> Array:
    """[..., M, N] -> [..., N, M]."""
    return x.swapaxes(-1, -2)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProducts:
    """The product of two stacks of matrices, in one way of rounding."""

    arithmetic: Arithmetic  # of products and sums
    operands: Format | None = None  # that operands are rounded to; None: as they are
    truncate: bool = False  # whether sums are rounded towards zero

    def __call__(self, x: Array, y: Array) -> Array:
        """x y, [..., M, N] from [..., M, n] and [..., n, N]."""
        x, y = self._rounded(x), self._rounded(y)
        arithmetic = self.arithmetic
        count = x.shape[-1]
        lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        if count == 0:
            return np.zeros((*lead, x.shape[-2], y.shape[-1]), x.dtype)
        total = arithmetic.mul(x[..., :, :1], y[..., :1, :])
        for i in range(1, count):
            term = arithmetic.mul(x[..., :, i : i + 1], y[..., i : i + 1, :])
            total = self.add(total, term)
        return total

    def add(self, x: Array, y: Array) -> Array:
        """x + y, rounded as sums of products are."""
        if not self.truncate:
            return self.arithmetic.add(x, y)
        total, rest = self.arithmetic.two_sum(x, y)
        # Rounded away from zero where what was lost points back to it.
        away = (rest != 0.0) & (np.signbit(rest) != np.signbit(total))
        return np.where(away, np.nextafter(total, np.zeros_like(total)), total)

    def _rounded(self, x: Array) -> Array:
        if self.operands is None:
            return x
        return self.arithmetic.cast(self.operands, x)
