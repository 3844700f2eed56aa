"""Cotangents of the log gates of a chunk, from those of the rows that they decay.

With c the running sum of the log gates, each row x of a chunk decayed to its place or
from it to the end, and x^ its cotangent (numerics 2.9; Yang et al., "Gated Linear
Attention Transformers with Hardware-Efficient Training", 2024, section 4.3),

    c_t^ = r r^ + read read^ - p p^ - k k^,   c_C^ += p~ p~^ + k~ k~^ + Gamma <G, S_0>

and the gate of token t has the sum of all c^ from t to the end of the chunk. A kernel
that sums rows and columns of F F^ instead has terms that are no larger.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.chunk_parts import ChunkParts
from scancheck.bounds.chunk_scores import Matrix
from scancheck.bounds.products import Products, Sized

FloatArray = NDArray[np.float64]


class Bar(NamedTuple):
    """The cotangent of an array: its value, and sizes of its terms with errors."""

    value: FloatArray
    sized: Sized

    @property
    def matrix(self) -> Matrix:
        """The value with its error."""
        return Matrix(self.value, self.sized.error)

    def turned(self) -> "Bar":
        """The transpose."""
        return Bar(self.matrix.turned().value, self.sized.turned())


def times(products: Products, row: Matrix, bar: Bar) -> Bar:
    """Entry by entry."""
    return Bar(row.value * bar.value, products.times(row.sized, bar.sized))


def gate_bars(
    products: Products,
    parts: ChunkParts,
    rows: Mapping[str, Bar],
    ends: Mapping[str, Bar],
    kept: Bar,
) -> Bar:
    """Cotangents of the log gates, [G, C, N].

    rows: those of read, r, p and k; ends: those of p~ and k~, [G, C, K] each; kept
    [G, K, L]: G times S_0.
    """
    groups, steps = len(kept.value), parts.steps
    alike = parts.whole.value.shape[1] == 1

    def folded(bar: Bar) -> Bar:
        """Summed over keys where they share their gate."""
        return _summed(products, bar, -1) if alike else bar

    total = np.zeros((3, groups, steps, parts.whole.value.shape[1]))

    def add(at: slice, sign: float, bar: Bar) -> None:
        total[:, :, at] += sign * bar.value, bar.sized.size, bar.sized.error

    for name, bar in rows.items():
        term = folded(times(products, getattr(parts.inputs, name), bar))
        at, sign = slice(0, steps), 1.0 if name in ("r", "read") else -1.0
        if name == "read" and not parts.reads_decayed:
            # The decays up to the token before; the first one reads without any.
            at = slice(0, steps - 1)
            term = Bar(term.value[:, 1:], Sized(*(x[:, 1:] for x in term.sized)))
        add(at, sign, term)
    last = slice(steps - 1, steps)
    decay = Matrix(*parts.from_start["p"])
    for name, bar in ends.items():
        row: Matrix = getattr(parts.inputs, name)
        term = folded(times(products, decay, times(products, row, bar)))
        add(last, 1.0, _summed(products, term, 1))
    inner = times(products, Matrix(*parts.whole), kept)
    add(last, 1.0, folded(_turned_rows(_summed(products, inner, -1))))
    value, size, error = np.cumsum(total[:, :, ::-1], 2)[:, :, ::-1]
    # Four terms a token, and three at the end.
    return Bar(value, products.rounded(Sized(size, error), 4 * steps + 3))


def _summed(products: Products, bar: Bar, axis: int) -> Bar:
    """Summed over one axis, which stays."""
    value, size, error = (x.sum(axis, keepdims=True) for x in (bar.value, *bar.sized))
    count = bar.value.shape[axis]
    return Bar(value, products.rounded(Sized(size, error), count))


def _turned_rows(bar: Bar) -> Bar:
    """[G, K, 1] -> [G, 1, K]."""
    return bar.turned()
