"""Decays from the chunk's start on both sides: factored, ratio and renormalised forms.

    factored    S_t = exp(c_t) S_in + exp(c_t) sum over j <= t of exp(-c_j) x_j
    renorm      the same, every factor with its power of two kept as an integer
    ratio       S_t = p_t (S_in + sum over j <= t of x_j / p_j)      p_t = w_1 ... w_t

With A_t for the outer and B_j for the inner factor as computed, the decay of a term is
A_t B_j. What c_t and c_j (p_t and p_j) have in common cancels, as for differences:

    factored, renorm   theta_tj as in `log_difference`; A and B have exp's errors at the
                       full c_t and c_j, so that e1 meets |c_t| + |c_j|, not |c_t - c_j|
    ratio, in order    theta_tj = sum over i in (j, t] of -log(1 - r_i), with r_i the
                       error of w_i, u, and eta / |p_i| where p_i underflows; beside
                       it u and eta of p_j, for products held in more digits
    ratio, tree        t products in p_t and j in p_j, each rounded, cancel nowhere

Underflow of A meets the whole inner sum, underflow inside that sum is multiplied by A.
A factor, a product or the inner sum beyond the format's largest value leaves infinity
or NaN (infinity times 0) in this and every later state; renormalised factors do not
overflow, and what falls off their sums is below 2 eta of the larger operand.
"""

import numpy as np

from scancheck.bounds.error_scan import raised
from scancheck.bounds.log_difference import later_rho
from scancheck.bounds.log_entry import (
    ADD_ETA,
    BROKEN,
    CAST_ETA,
    CAST_LARGEST,
    CAST_NORMAL,
    CAST_U,
    DECAY,
    DRIVE,
    DRIVE_ERROR,
    ETA,
    EXP0,
    EXP1,
    GROWTH,
    HIGH_SPAN,
    IN_ORDER,
    INNER,
    INNER_FLOOR,
    LASTING,
    LOG,
    LOW_SPAN,
    NORMAL,
    OWN,
    PRODUCT,
    RHO,
    ROUNDING,
    SHARE,
    START_ERROR,
    START_SIZE,
    SUM,
    SUM_ERROR,
    U,
    carried,
    further,
    joined,
)
from scancheck.oracles.jit import jit

# Integer exponents of the renormalised form have 32 bits and a few to spare.
_LARGEST_EXPONENT = 2.0**30 * np.log(2.0)
# A power of two away from exp(c), whatever the rounding of its exponent.
_SIGNIFICAND = 1.5


@jit()
def lost_below(size, eta, normal):
    """Absolute error by underflow of a result of about this size."""
    return eta if size < 2.0 * normal else 0.0


@jit()
def exponential(d, off, c):
    """Relative and absolute error of a computed exp(d), and its range of sizes.

    d itself is known to within `off`.
    """
    own = c[EXP0] + c[EXP1] * (abs(d) + off)
    own = own * (1.0 + c[CAST_U]) + c[CAST_U]
    low = np.exp(d - off) * max(0.0, 1.0 - own)
    high = np.exp(d + off) * (1.0 + own)
    lost = lost_below(low, c[ETA], c[NORMAL]) + lost_below(
        low, c[CAST_ETA], c[CAST_NORMAL]
    )
    return own, lost, low, high + lost


@jit()
def scaled_loss(low, c):
    """What x f may lose by underflow where only f's significand meets x >= low."""
    return _SIGNIFICAND * lost_below(low / _SIGNIFICAND, c[ETA], c[NORMAL])


@jit()
def open_inner(s, ratio):
    """The inner sum and the product of decays at the start of a chunk."""
    s[INNER] = s[START_SIZE] + s[START_ERROR] if ratio else 0.0
    s[INNER_FLOOR] = s[ROUNDING] = 0.0
    s[PRODUCT] = s[LOW_SPAN] = s[HIGH_SPAN] = 1.0


@jit()
def extend_factors(s, h, at, c, table):
    """The newest term, exp(-c_j) x_j, joins the inner sum."""
    own, lost, low, high = exponential(-s[SUM], s[SUM_ERROR] + h[RHO, at], c)
    h[OWN, at] = own
    if not high <= c[CAST_LARGEST]:
        s[LASTING] = np.inf
    s[LASTING] = raised(s[LASTING], high)
    _extend_inner(s, h, at, lost, low, high, c, table)


@jit()
def extend_scaled(s, h, at, c):
    """The same with exponents of their own: only x_j f_j may underflow."""
    off = s[SUM_ERROR] + h[RHO, at]
    h[OWN, at] = c[EXP0] + c[EXP1] * (abs(s[SUM]) + off)
    low = h[DRIVE, at] - h[DRIVE_ERROR, at]
    h[DRIVE_ERROR, at] += scaled_loss(low, c)
    if not abs(s[SUM]) + off < _LARGEST_EXPONENT:
        s[LASTING] = np.inf


@jit()
def extend_product(s, h, at, w, we, c, table):
    """The product of decays, one step longer, and its quotient x_j / p_j."""
    size, error = abs(w), we + c[CAST_U] * (abs(w) + we) + c[CAST_ETA]
    own = error / size
    known = np.exp(-s[SUM_ERROR] - (h[RHO, at - 1] if at > 0 else 0.0)) * (1.0 - own)
    s[PRODUCT] *= w
    s[SUM] = s[PRODUCT]
    s[LOW_SPAN] = size * min(s[LOW_SPAN], 1.0)
    s[HIGH_SPAN] = size * max(s[HIGH_SPAN], 1.0)
    in_order = c[IN_ORDER] > 0.0
    if at > 0:
        low = known * (abs(s[PRODUCT]) if in_order else s[LOW_SPAN])
        # Twice, for fp64 products are no closer than eta to those of fp64 kernels.
        rounding = c[U] + 2.0 * lost_below(low, c[ETA], c[NORMAL]) / low
        s[ROUNDING] = raised(s[ROUNDING], rounding)
    if not (own < 1.0 and s[ROUNDING] < 1.0):
        # The product may be zero: 0 / 0, or infinity times 0, from here on.
        s[BROKEN], s[SUM], s[ROUNDING] = 1.0, np.inf, np.inf
        return
    h[SHARE, at], h[RHO, at] = -np.log1p(-own), 0.0
    if at > 0 and in_order:
        h[RHO, at] = -np.log1p(-rounding)
        h[SHARE, at] += h[RHO, at]
    elif at > 0:
        h[RHO, at] = -at * np.log1p(-s[ROUNDING])
    s[SUM_ERROR] += h[SHARE, at]
    off = np.exp(s[SUM_ERROR] + h[RHO, at])
    high = abs(s[PRODUCT]) if in_order else s[HIGH_SPAN]
    s[LASTING] = raised(s[LASTING], high * off)
    h[OWN, at] = 0.0
    size = abs(s[PRODUCT])
    _extend_inner(s, h, at, 0.0, 1.0 / (size * off), off / size, c, table)


@jit()
def _extend_inner(s, h, at, lost, low, high, c, table):
    """x_j times a factor from `low` to `high`, of which `lost` is absolute error."""
    top = h[DRIVE, at] + h[DRIVE_ERROR, at]
    low *= h[DRIVE, at] - h[DRIVE_ERROR, at]
    s[INNER_FLOOR] += lost * top + lost_below(low, c[ETA], c[NORMAL]) + c[ADD_ETA]
    s[INNER] += high * top
    s[LASTING] = raised(s[LASTING], s[INNER] * (1.0 + table[at, GROWTH]))


@jit()
def outer_factor(s, h, at, c):
    """Relative and absolute error of exp(c_t), and its range of sizes."""
    return exponential(s[SUM], s[SUM_ERROR] + h[RHO, at], c)


@jit()
def state_error(s, h, at, own, lost, high, c, table):
    """Error of S_t; the outer factor has errors own and lost and is at most high."""
    growth = table[at, GROWTH]
    f, d, theta, e = 1.0, 0.0, 0.0, 0.0
    for back in range(at + 1):
        j = at - back
        off = theta + later_rho(h, at, c) + h[RHO, j] if back > 0 else 0.0
        both = own + h[OWN, j] + own * h[OWN, j]
        fe = f * (np.expm1(off) * (1.0 + both) + both)
        e += joined(f, fe, h[DRIVE, j], h[DRIVE_ERROR, j], growth)
        f = further(f, d, h[DECAY, j], h[LOG, j])
        d += h[LOG, j]
        theta += h[SHARE, j]
    off = theta + later_rho(h, at, c)
    fe = f * (np.expm1(off) * (1.0 + own) + own) + lost
    e += carried(s, f, fe, at, c, table)
    inside = lost * s[INNER] + s[INNER_FLOOR] * high + c[ETA]
    return e + inside * (1.0 + growth)
