"""Products of decayed rows within a chunk, and of their cotangents with them.

    scores[t, j] = sum over keys i of x_ti D_tji y_ji

with D_tji the decay from place j to place t, one for all keys or one for each. With one
for each it stands inside the sum: kernels then give each operand a part of it, so that
what an operand loses to casts and below the normal range is weighed by the other one.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.chunk_decays import Decay
from scancheck.bounds.products import Products, Sized, turned

FloatArray = NDArray[np.float64]


class Matrix(NamedTuple):
    """Exact entries, to fp64, and the errors of what a kernel has in their place."""

    value: FloatArray
    error: FloatArray

    @property
    def sized(self) -> Sized:
        """Without signs."""
        return Sized(np.abs(self.value), self.error)

    def turned(self) -> "Matrix":
        """The transpose."""
        return Matrix(turned(self.value), turned(self.error))


class Weights(NamedTuple):
    """Decays [G, N, C, C] from columns to rows, zero where there is no product."""

    decay: Decay
    grown: FloatArray  # [G, 1, N]: what a part of a decay may be at most
    inverse: FloatArray  # [G, C, N]: by how much columns may be scaled up

    def turned(self) -> "Weights":
        """From rows to columns."""
        return self._replace(decay=Decay(*map(turned, self.decay)))


def scores_of(
    products: Products, weights: Weights, x: Matrix, y: Matrix, below: int
) -> Matrix:
    """Scores [G, C, C] of rows x and columns y [G, C, K], `below` the diagonal."""
    d, off = np.abs(weights.decay.value), weights.decay.error
    keys, chunk = x.value.shape[2], x.value.shape[1]
    value = summed_over_keys(weights.decay.value, x.value, y.value)
    a, b = x.sized, y.sized
    size = summed_over_keys(d, a.size, b.size)
    error = summed_over_keys(d, a.size, b.error) + summed_over_keys(d, a.error, b.top)
    error = error + summed_over_keys(off, a.top, b.top)
    casts = products.cast_growth(2)
    error = error + casts * (size + error)
    lost = products.lost
    ends = (a.top * weights.grown).sum(-1)[..., :, None]
    ends = ends + (b.top * weights.grown * weights.inverse).sum(-1)[..., None, :]
    error = error + lost * ends + keys * lost * lost
    whole = products.rounded(Sized(size, error), keys + 5)
    mask = np.tri(chunk, k=-below)
    return Matrix(value * mask, whole.error * mask)


def summed_over_keys(d: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """Sums over keys of x_ti d_tji y_ji, d [G, N, C, C]."""
    if d.shape[1] == 1:
        one: FloatArray = d[:, 0] * (x @ turned(y))
        return one
    found: FloatArray = turned(x)[..., :, None] * d
    found *= turned(y)[..., None, :]
    total: FloatArray = found.sum(1)
    return total


def met(
    products: Products, weights: Weights, bar: Matrix, sized: Sized, y: Matrix
) -> tuple[FloatArray, Sized]:
    """sum over columns j of bar_tj D_tji y_ji, [G, C, K]: cotangents of rows.

    bar and sized [G, C, C]: values, and sizes with errors, of the scores' cotangents.
    """
    d, off = np.abs(weights.decay.value), weights.decay.error
    value = _gathered(weights.decay.value, bar.value, y.value)
    b = y.sized
    size = _gathered(d, sized.size, b.size)
    error = _gathered(d, sized.error, b.size)
    error = error + _gathered(off, sized.top, b.size)
    error = error + _gathered(d + off, sized.top, b.error)
    error = error + products.cast_growth(2) * (size + error)
    lost = products.lost
    reached = weights.grown * weights.inverse
    ends = sized.top.sum(-1)[..., None] * reached.max(1, keepdims=True)
    ends = ends + (b.top * reached).sum(1, keepdims=True)
    error = error + lost * ends
    return value, products.rounded(Sized(size, error), sized.size.shape[-1] + 5)


def _gathered(d: FloatArray, bar: FloatArray, y: FloatArray) -> FloatArray:
    """sum over j of bar_tj d_tji y_ji, d [G, N, C, C]."""
    if d.shape[1] == 1:
        one: FloatArray = (bar * d[:, 0]) @ y
        return one
    return turned(((bar[:, None] * d) @ turned(y)[..., None])[..., 0])
