"""Compiled loops over balls: one pass over each array.

One loop writes one array, as compilers vectorise only where few arrays could overlap.
The formulas are those of `scancheck.oracles.ball`.
"""

import numpy as np

from scancheck.oracles.fp64_exp import exp
from scancheck.oracles.fp64_log1p import log1p
from scancheck.oracles.jit import NO_ALLOCATION, jit
from scancheck.oracles.units import FLOOR, FUNCTION_ERROR, TINY, U64

BLOCK = 8  # numbers of a cache line


@jit(**NO_ALLOCATION)
def _multiply(x, y, z):
    """z = x y."""
    for i in range(z.size):
        z[i] = x[i] * y[i]


@jit(**NO_ALLOCATION)
def _multiply_radius(x, rx, y, ry, rz):
    """The radius of x y."""
    for i in range(rz.size):
        rz[i] = (
            abs(x[i]) * ry[i]
            + rx[i] * (abs(y[i]) + ry[i])
            + (U64 * abs(x[i] * y[i]) + FLOOR)
        )


@jit(**NO_ALLOCATION)
def _radius_of_exact(z, rz):
    """The radius of z = x y for exact factors."""
    for i in range(rz.size):
        rz[i] = U64 * abs(z[i]) + FLOOR


@jit(**NO_ALLOCATION)
def _radius_of_scaled(x, ry, z, rz):
    """The radius of z = x y for an exact x."""
    for i in range(rz.size):
        rz[i] = abs(x[i]) * ry[i] + (U64 * abs(z[i]) + FLOOR)


@jit(**NO_ALLOCATION)
def multiply(x, rx, y, ry, z, rz):
    """z = x y and its radius; an exact factor has no radii, [0]."""
    _multiply(x, y, z)
    if rx.size == ry.size:
        if rx.size == 0:
            _radius_of_exact(z, rz)
        else:
            _multiply_radius(x, rx, y, ry, rz)
    elif rx.size == 0:
        _radius_of_scaled(x, ry, z, rz)
    else:
        _radius_of_scaled(y, rx, z, rz)


@jit(**NO_ALLOCATION)
def add(x, rx, y, ry, z, rz):
    """z = x + y and its radius; an exact term has no radii, [0]."""
    for i in range(z.size):
        z[i] = x[i] + y[i]
    for i in range(z.size):
        rz[i] = U64 * abs(z[i])
    for i in range(rx.size):
        rz[i] += rx[i]
    for i in range(ry.size):
        rz[i] += ry[i]


@jit(forceinline=True, **NO_ALLOCATION)
def _expm1_above(r):
    """Nowhere below expm1(r) for r < 1; infinite beyond."""
    above = (r + r * r) * (1.0 + 4 * FUNCTION_ERROR)
    return above if r < 1.0 else np.inf


@jit(**NO_ALLOCATION)
def sigmoid(x, rx, z, rz):
    """z = 1 / (1 + exp(-x)) and its radius; an exact x has no radii, [0]."""
    for i in range(z.size):
        one = x[i]
        below = exp(-abs(one))
        z[i] = (1.0 if one >= 0.0 else below) / (1.0 + below)
    for i in range(z.size):
        rz[i] = 2 * (FUNCTION_ERROR + 3 * U64) * z[i] + FLOOR
    for i in range(rx.size):
        rz[i] += min(1.0, _expm1_above(rx[i]) * (z[i] + TINY))


@jit(**NO_ALLOCATION)
def softplus(x, rx, z, rz):
    """z = log(1 + exp(x)), of a slope below 1, and its radius; [0] for an exact x."""
    for i in range(z.size):
        one = x[i]
        # NaN passes through exp.
        z[i] = (one if one > 0.0 else 0.0) + log1p(exp(-abs(one)))
    for i in range(z.size):
        rz[i] = (2 * FUNCTION_ERROR + 2 * U64) * z[i] + FLOOR
    for i in range(rx.size):
        rz[i] += min(rx[i], _expm1_above(rx[i]) * (z[i] + TINY))


@jit(**NO_ALLOCATION)
def turn(x, z):
    """z[i, k, j] = x[i, j, k], a cache line of z at a time."""
    groups, rows, columns = x.shape
    whole = rows - rows % BLOCK
    for i in range(groups):
        for first in range(0, whole, BLOCK):
            for k in range(columns):
                for j in range(BLOCK):
                    z[i, k, first + j] = x[i, first + j, k]
        for j in range(whole, rows):
            for k in range(columns):
                z[i, k, j] = x[i, j, k]
