"""What the chunk forms share: their options, and steps cut into chunks.

Arrays are [chunks, ..., C, width]: the axes between time and width of the steps stand
between. The last chunk is filled up with tokens that change nothing: keys, values,
reads and log decays of 0, decays of 1.
"""

from dataclasses import dataclass

import numpy as np

from scancheck.formats import Format
from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.matrix_products import MatrixProducts


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkForm:
    """A chunk algorithm with its options."""

    chunk: int  # tokens per chunk
    gates: str  # what decays: none, one per head, or one per key
    # How decays inside a chunk are formed: products of decays; exponentials of
    # differences of sums of logs; of sums of their own; exp(c_t) times exp(-c_j).
    decays: str = "diff"  # products, diff, segsum, factored
    block: int | None = None  # tokens a block of two-level chunks; None: one level
    inverse: str = "substitution"  # substitution, block, neumann; of rank-one chunks
    operands: Format | None = None  # of matrix products; None: as computed
    truncate: bool = False  # whether sums of matrix products are
    state: Format | None = None  # that of the carried state; None: as computed

    def products(self, arithmetic: Arithmetic) -> MatrixProducts:
        """The matrix products of the algorithm."""
        return MatrixProducts(
            arithmetic=arithmetic, operands=self.operands, truncate=self.truncate
        )


def in_chunks(x: Array, chunk: int, filler: float) -> Array:
    """[T, ..., width] -> [ceil(T / C), ..., C, width]."""
    length, *rest = x.shape
    count = -(-length // chunk)
    missing = np.full((count * chunk - length, *rest), filler, x.dtype)
    x = np.concatenate((x, missing)).reshape(count, chunk, *rest)
    return np.ascontiguousarray(np.moveaxis(x, 1, -2))


def by_time(x: Array, length: int) -> Array:
    """[chunks, ..., C, width] -> [T, ..., width], without what fills up the last."""
    x = np.moveaxis(x, -2, 1)
    count, chunk, *rest = x.shape
    return x.reshape(count * chunk, *rest)[:length]


def lower_triangle(chunk: int, *, strict: bool) -> Array:
    """Which pairs (t, j) of tokens have j <= t, or j < t, [C, C]."""
    return np.tri(chunk, k=-1 if strict else 0, dtype=bool)
