"""The 2-norm of a rank-one update of a diagonal matrix, from above.

A state that is moved by A = diag(w) + p q^T carries its error from step to step by A.
Bounding that entry by entry, through |A|, would compound: |I - k k^T| has norm 2 for a
unit vector k where I - k k^T has norm 1. So errors of a column are carried by their
2-norm and ||A|| (numerics 2.10).

||A||^2 is the largest eigenvalue of A^T A = diag(w^2) + U C U^T with U = [w p, q] and
C = [[0, 1], [1, |p|^2]]. A number s above all w^2 is above it exactly where

    (|p|^2 + x) z < (1 - y)^2, x = sum (w p)^2 / d, y = sum w p q / d, z = sum q^2 / d,

d = s - w^2: s - A^T A is then positive definite, by the inertia of the matrix
[[diag(d), U], [U^T, C^-1]] taken apart from either end (Haynsworth, "Determination of
the inertia of a partitioned Hermitian matrix", Linear Algebra Appl. 1, 1968). Bisection
finds the smallest such s.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from scancheck.oracles.jit import NO_ALLOCATION, jit
from scancheck.oracles.numbers import plain
from scancheck.oracles.threads import share
from scancheck.oracles.units import U64

FloatArray = NDArray[np.float64]

# Relative distance to the largest w^2 that is kept: nearer, the sums above cancel.
LEAST_ABOVE = 1e-9
HALVINGS = 28  # of a range that is at most a few times the square of the norm
BLOCK = 16  # keys that are summed side by side
SMALLEST = float(np.finfo(np.float64).tiny)  # what squares may lose to underflow


Square = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]


def transition_norm(
    w: FloatArray, p: FloatArray, q: FloatArray, of_decays: Square | None = None
) -> FloatArray:
    """An upper bound on ||diag(w) + p q^T||_2 over the last axis, of shape [...].

    w: [..., K or 1], p, q: [..., K]. It is within about 1e-8 of the norm, or of the
    largest |w| where that is larger; infinite where an entry is not finite, or so large
    that its square is not. `of_decays` bisects on a device, where arrays are there.
    """
    of_decays = of_decays or square_of_decays
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        alike = w.shape[-1] == 1 < p.shape[-1]
        square = _of_one_decay(w[..., 0], p, q) if alike else of_decays(w, p, q)
        norm = np.sqrt(square) * (1.0 + LEAST_ABOVE)
    return np.where(np.isfinite(norm), norm, np.inf)


def _of_one_decay(w: FloatArray, p: FloatArray, q: FloatArray) -> FloatArray:
    """||w I + p q^T||^2: w^2 and the larger eigenvalue in the plane of p and q.

    There A^T A - w^2 I has trace 2 w p.q + |p|^2 |q|^2 and determinant
    -w^2 (|p|^2 |q|^2 - (p.q)^2).
    """
    both = (p * p).sum(-1) * (q * q).sum(-1)
    inner = (p * q).sum(-1)
    roundings = 8 * p.shape[-1] * U64 * both
    trace = 2.0 * w * inner + both
    apart = np.maximum(both - inner * inner, 0.0) + roundings
    rise = 0.5 * (trace + np.sqrt(trace * trace + 4.0 * w * w * apart))
    found: FloatArray = w * w + np.maximum(rise, 0.0) + SMALLEST
    return found


def square_of_decays(w: FloatArray, p: FloatArray, q: FloatArray) -> FloatArray:
    """||diag(w) + p q^T||^2 by bisection."""
    w, p, q = np.broadcast_arrays(w, p, q)
    squares, left = w * w, (p * p).sum(-1)
    top = squares.max(-1, initial=0.0)
    reach = (np.sqrt(top) + np.sqrt(left * (q * q).sum(-1))) ** 2
    low = top * (1.0 + LEAST_ABOVE) + SMALLEST
    high: FloatArray = np.maximum(low, reach * (1.0 + LEAST_ABOVE))
    squared, xs, ys, zs = (
        plain(part.reshape(-1, part.shape[-1]))
        for part in (squares, (w * p) ** 2, w * p * q, q * q)
    )
    found = plain(high.reshape(-1))
    bottom, rest = plain(low.reshape(-1)), plain(left.reshape(-1))

    blocks = -(-squares.shape[-1] // BLOCK)

    def run(begin: int, stop: int) -> None:
        room = np.zeros((blocks + 1, 4 * BLOCK))
        _bisect(begin, stop, squared, xs, ys, zs, bottom, rest, found, room)

    share(found.size, squares.size * HALVINGS // BLOCK, run)
    return np.where(np.isfinite(reach), found.reshape(reach.shape), np.inf)


@jit(**NO_ALLOCATION)
def _bisect(begin, stop, squares, xs, ys, zs, low, left, high, room):
    """Halves [low, high] for the matrices begin..stop; high [n] stays above each norm.

    squares, xs, ys, zs [n, K]: w^2, (w p)^2, w p q and q^2. BLOCK keys are summed side
    by side, so that they are vectors; any order's roundings are within the margin.
    room [blocks + 1, 4 BLOCK] holds zeros, which keys beyond the last one leave.
    """
    blocks, keys = room.shape[0] - 1, squares.shape[1]
    sums = room[blocks]
    for task in range(begin, stop):
        for key in range(keys):
            row, j = room[key // BLOCK], key % BLOCK
            row[j], row[BLOCK + j] = squares[task, key], xs[task, key]
            row[2 * BLOCK + j], row[3 * BLOCK + j] = ys[task, key], zs[task, key]
        least, most, rest = low[task], high[task], left[task]
        for _ in range(HALVINGS):
            middle = 0.5 * (least + most)
            for j in range(3 * BLOCK):
                sums[j] = 0.0
            for block in range(blocks):
                _add(sums, room[block], middle)
            x, y, z = 0.0, 0.0, 0.0
            for j in range(BLOCK):
                x, y, z = x + sums[j], y + sums[BLOCK + j], z + sums[2 * BLOCK + j]
            # A margin for the roundings of the sums.
            if (rest + x) * z * (1.0 + 1e-12) < (1.0 - y) ** 2:
                most = middle
            else:
                least = middle
        high[task] = most


@jit(**NO_ALLOCATION)
def _add(sums, row, middle):
    """Adds a block of keys to the three sums."""
    for j in range(BLOCK):
        apart = 1.0 / (middle - row[j])
        sums[j] += row[BLOCK + j] * apart
        sums[BLOCK + j] += row[2 * BLOCK + j] * apart
        sums[2 * BLOCK + j] += row[3 * BLOCK + j] * apart
