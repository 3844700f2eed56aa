"""The inverse of a chunk's unit lower triangular matrix I + N, in three ways.

    substitution  T_t = e_t - (N_t1 T_1 + .. ), rows downwards, each term subtracted in
                  turn from j = 1 upwards
    block         16 x 16 blocks on the diagonal by substitution, then block rows:
                  T_ab = -T_aa (N_ab T_bb + .. + N_a,a-1 T_a-1,b)
    neumann       (I - N)(I + N^2)(I + N^4) .., until the power is zero

What Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence
Length" (2024), call the UT transform inverts I + tril(diag(beta) K K^T, -1); kernels
merge inverses of blocks (flash-linear-attention's solve_tril), and Neumann's product,
doubled, needs nothing but matrix products. N is strictly lower triangular. Operands are
not rounded; sums are as those of the products given.
"""

from dataclasses import replace

import numpy as np

from scancheck.kernels.models.arithmetic import Array
from scancheck.kernels.models.chunk_frame import lower_triangle
from scancheck.kernels.models.matrix_products import MatrixProducts, transposed
from scancheck.kernels.models.tape import Tape, Variable

BLOCK = 16
INVERSES = ("substitution", "block", "neumann")


def inverse_of_unit_plus(
    tape: Tape, products: MatrixProducts, method: str, lower: Variable
) -> Variable:
    """(I + N)^-1, [..., C, C]; backwards Nbar = -T^T Tbar T^T below the diagonal."""
    products = replace(products, operands=None)
    found = _METHODS[method](products, lower.value)
    mask = lower_triangle(found.shape[-1], strict=True)

    def pull(bar: Array) -> None:
        back = transposed(found)
        bar = products(products(back, bar), back)
        tape.add_to(lower, np.where(mask, -bar, 0.0).astype(bar.dtype))

    return tape.record(found, pull)


def by_substitution(products: MatrixProducts, lower: Array) -> Array:
    """Row after row; all rows below a finished one take its term together."""
    result = _identity(lower)
    for j in range(lower.shape[-1] - 1):
        term = products.arithmetic.mul(
            lower[..., j + 1 :, j, None], result[..., None, j, :]
        )
        result[..., j + 1 :, :] = products.add(result[..., j + 1 :, :], -term)
    return result


def by_blocks(products: MatrixProducts, lower: Array) -> Array:
    """Diagonal blocks by substitution, the blocks below them by products."""
    size = lower.shape[-1]
    cuts = [slice(i, min(i + BLOCK, size)) for i in range(0, size, BLOCK)]
    result = np.zeros_like(lower)
    for a, rows in enumerate(cuts):
        result[..., rows, rows] = by_substitution(products, lower[..., rows, rows])
        for b in range(a):
            columns = cuts[b]
            between = slice(columns.start, rows.start)
            sums = products(lower[..., rows, between], result[..., between, columns])
            result[..., rows, columns] = -products(result[..., rows, rows], sums)
    return result


def by_doubling(products: MatrixProducts, lower: Array) -> Array:
    """One more factor I + N^2m as long as 2m is below C."""
    identity = _identity(lower)
    result = products.add(identity, -lower)
    power, reached = lower, 2
    while reached < lower.shape[-1]:
        power = products(power, power)
        result = products.add(result, products(result, power))
        reached *= 2
    return result


_METHODS = {
    "substitution": by_substitution,
    "block": by_blocks,
    "neumann": by_doubling,
}


def _identity(like: Array) -> Array:
    identity = np.broadcast_to(np.eye(like.shape[-1], dtype=like.dtype), like.shape)
    return identity.copy()
