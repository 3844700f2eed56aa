"""Compiled loops over balls: outer products and the radius of exp.

One loop writes one array, as compilers vectorise only where few arrays could overlap.
The formulas are those of `scancheck.oracles.ball`.
"""

from scancheck.oracles.jit import NO_ALLOCATION, jit
from scancheck.oracles.units import FLOOR, FUNCTION_ERROR, TINY, U64


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
def outer_product(x, rx, y, ry, z, rz, g, start, first):
    """z[0, t, k] = x[g, start + t] y[g, k] and its radius, for lanes from `first` on.

    x, rx [G, T, L] and y, ry [G, K, L], where one group counts for all; z, rz
    [1, steps, K, lanes].
    """
    last = first + z.shape[3]
    gx = g if x.shape[0] > 1 else 0
    gy = g if y.shape[0] > 1 else 0
    for t in range(z.shape[1]):
        xt, rxt = x[gx, start + t, first:last], rx[gx, start + t, first:last]
        for k in range(z.shape[2]):
            yk, ryk = y[gy, k, first:last], ry[gy, k, first:last]
            _multiply(xt, yk, z[0, t, k])
            _multiply_radius(xt, rxt, yk, ryk, rz[0, t, k])


@jit(**NO_ALLOCATION)
def exp_radius(value, radius):
    """Replaces the radii of x by those of value = exp(x); counts radii beyond 1.

    r + r^2 is above expm1(r) up to r = 1.79; with a count above 0 nothing holds.
    """
    beyond = 0
    for i in range(value.size):
        r = radius[i]
        beyond += not r < 1.0
        above = (r + r * r) * (1.0 + 4 * FUNCTION_ERROR)
        radius[i] = (above + FUNCTION_ERROR) * (value[i] + TINY) + FLOOR
    return beyond
