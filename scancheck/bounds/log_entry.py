"""What a chunk in a log-space form keeps of one entry, and the errors all forms share.

Every form writes a chunk as

    S_t = (decay over (0, t]) S_in + sum over j <= t of (decay over (j, t]) x_j

and differs in how it forms the decays. A decay exp(d) whose exponent is off by theta
is off by the factor exp(theta) (1 + e0 + e1 |d|), valid for any size of theta. Terms
are then multiplied, added in any order (at most t additions and the carry), and S_t at
the end of the chunk becomes S_in of the next.
"""

import numpy as np

from scancheck.bounds.error_scan import raised
from scancheck.oracles.jit import jit

# S_t; M_t; bound on its error; size and error of S_in; sum of log gates c_t (for ratio
# p_t; infinite where the chunk's decays have no value any more), its error and sum of
# |l|; max of |P(k, t)| (M_k + error); chunks so far; peak of S_t alone; peak that all
# later states share; whether no later state has a value. For forms that start decays at
# the chunk's edge: largest inner sum, its absolute errors, the product of decays,
# smallest and largest product that ends here, error of one product. What the newest
# gate adds to theta, and rho_t.
COMPONENTS = 21
(
    VALUE, SIZE, ERROR, START_SIZE, START_ERROR, SUM, SUM_ERROR, PATH, REACH, CHUNKS,
    PEAK, LASTING, BROKEN, INNER, INNER_FLOOR, PRODUCT, LOW_SPAN, HIGH_SPAN, ROUNDING,
    NEW_SHARE, NEW_RHO,
) = range(COMPONENTS)  # fmt: skip

# Of each step of the present chunk: l_i and |exp(l_i)|; its share of theta; rho_i (what
# a tree adds); magnitude and error of x_i; what one more form keeps.
HISTORY = 7
LOG, DECAY, SHARE, RHO, DRIVE, DRIVE_ERROR, OWN = range(HISTORY)

# Values of FORM, by their names in contracts.
FORMS = ("diff", "segsum", "factored", "ratio", "renorm", "full")
DIFFERENCE, MASKED, FACTORED, RATIO, RENORMALISED, WHOLE = range(len(FORMS))

COEFFICIENTS = 21
(
    FORM, U, ETA, ADD_ETA, STATE_U, STATE_ETA, LARGEST, STATE_LARGEST, EXP0, EXP1,
    CAST_U, CAST_ETA, CAST_LARGEST, IN_ORDER, TREES, TREE_CARRY, NORMAL, CAST_NORMAL,
    LN0, LN1, LEAD,
) = range(COEFFICIENTS)  # fmt: skip

# By position in the chunk: (1 + u)^n - 1 for the product and the additions of a term;
# for the additions of a sum of log gates; for n roundings one after another; and the
# additions on a path of the running sum over the whole length.
POSITION_COLUMNS = 4
GROWTH, SUM_GROWTH, CHAIN, DEPTH = range(POSITION_COLUMNS)

# Kept states: a packed number, and what a backward pass that reuses c_t needs.
NUMBER_ROWS = 4
STATE_ROWS = 9

_SMALL = 2.0**-10
_SAFE = 1e280  # products of decays between its inverse and it are not near fp64's ends


@jit()
def factor_error(f, d, theta, c):
    """The error of the computed f = exp(d) when d is off by theta."""
    own = c[EXP0] + c[EXP1] * (abs(d) + theta)
    if theta < _SMALL:
        # expm1(x) <= x + x^2 here.
        e = f * (theta * (1.0 + theta) * (1.0 + own) + own)
    else:
        e = max(np.exp(d + theta) * (1.0 + own) - f, f * own)
    return e + c[CAST_U] * (f + e) + c[ETA] + c[CAST_ETA]


@jit()
def further(f, d, step, log):
    """exp(d + log) from f = exp(d), by a product where that is safe."""
    f *= step
    return f if 1.0 / _SAFE < f < _SAFE else np.exp(d + log)


@jit()
def joined(f, fe, size, e, growth):
    """Error of (f, fe) times (size, e), product and additions rounded."""
    exact = f * size
    moved = f * e + fe * (size + e)
    return moved * (1.0 + growth) + growth * exact


@jit()
def open_chunk(s, c, here, chunk, every):
    """The state becomes S_in, rounded into the format it is kept in."""
    size = abs(s[VALUE])
    if c[STATE_U] > 0.0 and here % every < chunk:
        top = size + s[ERROR]
        s[ERROR] += c[STATE_U] * top + c[STATE_ETA]
        if not (top <= c[STATE_LARGEST]):
            s[PEAK] = np.inf
    s[START_SIZE] = s[SIZE] if c[TREE_CARRY] > 0.0 else size
    s[START_ERROR] = s[ERROR]
    s[LASTING] = raised(s[LASTING], s[PEAK])
    s[SUM] = s[SUM_ERROR] = s[PATH] = 0.0
    s[CHUNKS] += 1.0


@jit()
def carried(s, f, fe, at, c, table):
    """Error that S_in brings with a decay f over the chunk that is off by fe."""
    growth = table[at, GROWTH]
    e = joined(f, fe, s[START_SIZE], s[START_ERROR], growth)
    lost = c[ETA] + c[ADD_ETA]
    if c[TREE_CARRY] > 0.0:
        # Products of whole chunks' decays may underflow before they meet a state.
        lost += s[CHUNKS] * c[ETA] * s[REACH]
    return e + lost * (1.0 + growth)


@jit()
def write_state(states, t, g, k, lane, s, c):
    """Entry t of the kept states; what goes with c_t where asked for.

    That is c_t, its error, theta's parts, and the largest sum that c_t's factor meets.
    """
    states[0, t, g, k, lane] = s[VALUE]
    states[1, t, g, k, lane] = s[SIZE] if c[TREES] > 0.0 else abs(s[VALUE])
    states[2, t, g, k, lane] = s[ERROR]
    states[3, t, g, k, lane] = s[PEAK]
    if states.shape[0] > NUMBER_ROWS:
        states[4, t, g, k, lane] = s[SUM]
        states[5, t, g, k, lane] = s[SUM_ERROR] + s[NEW_RHO]
        states[6, t, g, k, lane] = s[NEW_SHARE]
        states[7, t, g, k, lane] = s[NEW_RHO]
        states[8, t, g, k, lane] = s[INNER]
