"""The inverse T of a chunk's unit lower triangular matrix L, and its error.

Numerics 2.10. Whatever the method, it inverts a matrix that is off by dL. Its exact
inverse T' = (L + dL)^-1 is one matrix for all that a kernel multiplies by it: what T'
makes of R is off by T' dL T R, which is kept apart from what the method adds to T':

    substitution  L T' = I + R with |R| <= gamma_C |L| |T'| (Higham, "Accuracy and
                  Stability of Numerical Algorithms", 2002, theorem 8.5)
    block         diagonal blocks D of BLOCK rows by substitution, the others from
                  T = D - D N T, N the rest of L, by products of cast operands
    neumann       T = (I + A)(I + A^2)(I + A^4) ..., A = I - L, by the powers formed

A bound e <= M (|T| + e) + b with M >= 0 triangular is solved for e, so that it holds to
all orders.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.products import Products, Sized, turned
from scancheck.bounds.rules import Rules

FloatArray = NDArray[np.float64]

BLOCK = 16  # rows of the blocks that kernels invert one row after the other


class Inverse(NamedTuple):
    """T, [G, C, C], and in which ways a kernel's is off."""

    value: FloatArray
    sized: Sized  # of T', and what the method adds to it
    off: FloatArray  # dL

    def moved(self, x: FloatArray) -> FloatArray:
        """What T' - T makes of R, from |T R|."""
        return self.sized.size @ (self.off @ x)

    def turned(self) -> "Inverse":
        """The transpose."""
        return Inverse(turned(self.value), self.sized.turned(), turned(self.off))


def inverse_of(
    products: Products, rules: Rules, value: FloatArray, error: FloatArray
) -> Inverse:
    """The inverse of L = `value` [G, C, C], which is off by `error`."""
    inverse = substituted(value, np.broadcast_to(np.eye(value.shape[-1]), value.shape))
    if rules.inverse == "neumann":
        added = _of_powers(products, value, error, inverse)
        return Inverse(inverse, Sized(np.abs(inverse), added), np.zeros_like(error))
    size = np.abs(inverse)
    moved = size @ error
    off = solved(moved, moved @ size)
    held, found = np.abs(value) + error, size + off
    # The sum for T_ij has i - j terms.
    place = np.arange(value.shape[-1])
    gamma = np.expm1(((place[:, None] - place).clip(0) + 2) * np.log1p(products.sum_u))
    floors = (value.shape[-1] + 2) * products.floor
    if rules.inverse == "block" and value.shape[-1] > BLOCK:
        added = _of_blocks(products, value, error, inverse, off)
    else:
        residual = gamma * (found @ held)
        added = solved(residual, residual @ found + floors * found.sum(-1)[..., None])
    return Inverse(inverse, Sized(found, np.tril(added)), error)


def substituted(lower: FloatArray, right: FloatArray) -> FloatArray:
    """L^-1 B for unit lower triangular L, one row after the other."""
    found = np.array(right)
    for i in range(1, lower.shape[-1]):
        found[..., i, :] -= (lower[..., i, None, :i] @ found[..., :i, :])[..., 0, :]
    return found


def solved(m: FloatArray, right: FloatArray) -> FloatArray:
    """(I - M)^-1 B for M >= 0 lower triangular; infinite where that has no sense."""
    found = np.array(right)
    for i in range(m.shape[-1]):
        if i:
            found[..., i, :] += (m[..., i, None, :i] @ found[..., :i, :])[..., 0, :]
        rest = 1.0 - m[..., i, i, None]
        found[..., i, :] = np.where(rest > 0.0, found[..., i, :] / rest, np.inf)
    return found


def _of_blocks(
    products: Products,
    value: FloatArray,
    error: FloatArray,
    inverse: FloatArray,
    off: FloatArray,
) -> FloatArray:
    """What merging blocks adds: row of blocks by row of blocks, or in pairs.

    With D' = D + dD and T' = D' - D' N T' + R, N including dL,

        T' - T = T diag(L) (dD (I - N T') + R),     |R| <= c |D'| |N| |T'|

    and in pairs T21' = -T22' L21 T11' + R at each level.
    """
    size, chunk = np.abs(inverse), value.shape[-1]
    place = np.arange(chunk) // BLOCK
    inside = place[:, None] == place
    diagonal, rest = np.where(inside, value, 0.0), np.where(inside, 0.0, value)
    off_inside, off_rest = np.where(inside, error, 0.0), np.where(inside, 0.0, error)
    n = np.abs(rest) + off_rest
    blocks = np.where(inside, size + off, 0.0)
    gamma = products.growth(BLOCK + 2)
    floor = (chunk + 4) * products.floor
    residual = gamma * (blocks @ (np.abs(diagonal) + off_inside))
    own = solved(residual, residual @ blocks + floor * np.where(inside, 1.0, 0.0))
    own = np.where(inside, own, 0.0)
    c = np.expm1(
        np.log1p(products.cast_growth(4))
        + np.log1p(products.growth(chunk + 2))
        + np.log1p(gamma)
    )
    lost = floor
    if products.low is not None:
        # Casts of D, N, T and N T, each below the normal range of the format.
        sums = (x.sum(-1).max(initial=0.0) for x in (n, blocks))
        lost = lost + products.low.eta * (4.0 + sum(sums))
    left = (
        np.abs(inverse @ diagonal) + off @ np.abs(diagonal) + (size + off) @ off_inside
    )
    right = (
        np.abs(diagonal @ inverse) + np.abs(diagonal) @ off + off_inside @ (size + off)
    )
    merged = c * (blocks + own) @ n
    m = np.where(inside, 0.0, left @ (own @ n + merged))
    added = left @ (
        own @ right + merged @ (size + off) + lost * (1.0 + blocks.sum(-1)[..., None])
    )
    rows = solved(m, added)
    return np.maximum(
        rows, _in_pairs(products, n, size + off, inverse, value, own, c, lost, off)
    )


def _in_pairs(
    products: Products,
    n: FloatArray,
    top: FloatArray,
    inverse: FloatArray,
    value: FloatArray,
    own: FloatArray,
    c: float,
    lost: float,
    off: FloatArray,
) -> FloatArray:
    """Errors of blocks merged two at a time, each level from the one below."""
    chunk, half = n.shape[-1], BLOCK
    found = np.array(own)
    while half < chunk:
        for start in range(0, chunk - half, 2 * half):
            a = slice(start, start + half)
            b = slice(start + half, min(start + 2 * half, chunk))
            # Rounding of the exact products, and what the blocks' own errors do.
            left = np.abs(inverse[..., b, b] @ value[..., b, a])
            left = left + off[..., b, b] @ n[..., b, a]
            right = np.abs(value[..., b, a] @ inverse[..., a, a])
            right = right + n[..., b, a] @ off[..., a, a]
            first, second = found[..., a, a], found[..., b, b]
            moved = left @ first + second @ right
            moved = moved + second @ n[..., b, a] @ first
            t11, t22 = top[..., a, a] + first, top[..., b, b] + second
            whole = t22 @ n[..., b, a] @ t11
            found[..., b, a] = moved + c * whole + lost * (1.0 + t22.sum(-1)[..., None])
        half *= 2
    return found


def _of_powers(
    products: Products, value: FloatArray, error: FloatArray, inverse: FloatArray
) -> FloatArray:
    """Errors of the product of I + A^(2^i), from the powers that are formed."""
    chunk = value.shape[-1]
    eye = np.broadcast_to(np.eye(chunk), value.shape)
    power = eye - value
    signed, found = Sized(np.abs(power), error), eye + power
    total = Sized(np.abs(found), error)
    reach = 2
    while reach < chunk:
        square = products.product(signed, signed)
        power = power @ power
        signed = Sized(np.abs(power), square.error)
        # T (I + A^n), or T + T A^n.
        step = products.product(total, signed)
        found = found + found @ power
        total = Sized(
            np.abs(found),
            products.plus(Sized(total.size, products.cast(total).error), step).error,
        )
        reach *= 2
    # The value itself is the stable one, the kernel's is off by what was lost here.
    return np.tril(total.error) + np.abs(found - inverse)
