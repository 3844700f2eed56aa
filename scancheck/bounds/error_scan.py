"""The recurrence over error numbers, compiled: one step of every companion scan.

State of one entry (first axis of the state array):

    VALUE      S_t, to fp64
    SIZE       M_t = |w| M + |x|                            numerics 2.2
    ERROR      any order: sum of |monomials| times ((1 + u)^(products) - 1 + input
               errors), W_t of 2.2 kept valid to all orders; in order: the running bound
               of 2.3 (Higham 2002, section 5.1), or that of `_in_order_compensated`
    STORED     R_t of 2.4: roundings of the kept state
    FLOOR      absolute errors of underflowing results, carried along
    TOP        largest SIZE + ERROR so far
    REACH      max over k of |P(k, t)| TOP_k: what a flushed product of decays can meet
    REST       what the rests of a compensated kernel may hold
    SPAN       largest |product of consecutive decays| that ends at t
    PEAK       largest intermediate so far; infinity once anything is not a number
    RUNNING    bound by emulation of a named order; infinity where there is none

For any order, products on a term's path are exact in number ((t - j), whatever the
association), additions are counted by the structure; so the error read out after n
additions is ERROR + ((1 + u)^n - 1)(SIZE + ERROR) + STORED + underflow. What depends on
the number of steps alone comes in a table, `path`.
"""

import numpy as np

from scancheck.oracles.jit import NO_ALLOCATION, jit

COMPONENTS = 11
(
    VALUE, SIZE, ERROR, STORED, FLOOR, TOP, REACH, REST, SPAN, PEAK, RUNNING
) = range(COMPONENTS)  # fmt: skip

# Fields of the coefficient vector.
COEFFICIENTS = 11
U, ETA, ADD_ETA, STATE_U, STATE_ETA, STATE_LARGEST, TREES, FMA, COMP, PRODUCTS = range(
    COEFFICIENTS - 1
)
STEP_U = COEFFICIENTS - 1  # relative error that a term gains with each step of age

# Columns of `path`: additions on a term's path; (1 + u)^n - 1 for those roundings that
# are neither compensated nor counted by STEP_U; (1 + u)^(all roundings); and the second
# order of 2.6.
PATH_COLUMNS = 5
STEPS, ADDS, GROWTH, GROWN, SECOND = range(PATH_COLUMNS)

# A rest of a compensated step passes at most one product and three additions, and
# (1 + u)^4 - 1 <= 5 u for every format here.
REST_ROUNDINGS = 5.0


@jit(**NO_ALLOCATION)
def raised(peak, top):
    """The larger one; infinity for NaN."""
    if top <= peak:
        return peak
    return top if top == top else np.inf


@jit(**NO_ALLOCATION)
def sharper(counted, running):
    """The smaller one of two bounds; the first one if the second is not a number."""
    return running if running < counted else counted


@jit(**NO_ALLOCATION)
def total_error(s, c, path):
    """Bound on the state's error, from one entry's components."""
    u = c[U]
    e = s[ERROR]
    if c[TREES] == 0.0:
        if c[COMP] > 0.0:
            e += u * (abs(s[VALUE]) + e) + c[ADD_ETA]
        return e
    e += s[STORED] + path[GROWTH] * (s[SIZE] + e + s[STORED])
    lost = 2.0 * max(path[ADDS], 1.0) * s[FLOOR] + path[STEPS] * c[ETA] * s[REACH]
    if lost > 0.0:
        e += path[GROWN] * lost
    if c[COMP] > 0.0:
        e += path[SECOND] * (s[REST] + u * path[ADDS] * s[SIZE])
        if c[COMP] == 1.0:
            # Kahan's own form rounds x - c once before it is added.
            e += u * (s[SIZE] + e)
        e += u * (abs(s[VALUE]) + e)
    return e


@jit(**NO_ALLOCATION)
def settle(s, c, path):
    """The total error after a step, which joins the peak with the state."""
    e = total_error(s, c, path)
    size = s[SIZE] if c[TREES] > 0.0 else abs(s[VALUE])
    s[PEAK] = raised(s[PEAK], size + e)
    return e


@jit(**NO_ALLOCATION)
def keep_state(s, c, path):
    """The state rounded into the format that it is kept in (numerics 2.4)."""
    size = abs(s[VALUE])
    kept = total_error(s, c, path)
    lost = c[STATE_U] * (size + kept) + c[STATE_ETA]
    if c[COMP] > 0.0:
        # The state and its rest are first rounded into one number.
        lost += c[U] * (size + kept)
    if not (size + kept <= c[STATE_LARGEST]):
        s[PEAK] = np.inf
    if c[TREES] > 0.0:
        s[STORED] += lost
    else:
        s[ERROR] += lost


@jit(**NO_ALLOCATION)
def advance(s, w, we, x, xm, xe, xpeak, c, boundary, path):
    """One step S <- w S + x on one entry's components, in place.

    w, we: decay and its error; x, xm, xe, xpeak: the value written; `path` is the row
    of the table before this step.
    """
    if boundary and c[STATE_U] > 0.0:
        keep_state(s, c, path)
    high = abs(w) + we
    s[PEAK] = raised(s[PEAK], xpeak)
    if c[TREES] > 0.0:
        _any_order(s, w, we, high, x, xm, xe, c)
    elif c[COMP] == 0.0:
        _in_order(s, w, we, high, x, xe, c)
    else:
        _in_order_compensated(s, w, we, high, x, xe, c)
    if c[PRODUCTS] > 0.0:
        s[SPAN] = max(high, high * (1.0 + c[U]) * s[SPAN])
        s[PEAK] = raised(s[PEAK], s[SPAN])


@jit(**NO_ALLOCATION)
def _any_order(s, w, we, high, x, xm, xe, c):
    """Companion scans that hold for every association."""
    u, size = c[U], s[SIZE]
    product_u = c[STEP_U]
    s[VALUE] = w * s[VALUE] + x
    s[SIZE] = abs(w) * size + xm
    s[ERROR] = high * (1.0 + product_u) * s[ERROR] + (we + product_u * high) * size + xe
    s[STORED] = high * (1.0 + u) * s[STORED]
    s[FLOOR] = high * s[FLOOR] + c[ETA] + c[ADD_ETA]
    s[TOP] = max(s[TOP], s[SIZE] + s[ERROR])
    s[REACH] = max(high * s[REACH], s[TOP])
    s[REST] = high * (s[REST] + u * size)


@jit(**NO_ALLOCATION)
def _in_order(s, w, we, high, x, xe, c):
    """The running bound: product and sum rounded, or one rounding with fma."""
    u, old, before = c[U], abs(s[VALUE]), s[ERROR]
    reach = high * (old + before)
    s[VALUE] = w * s[VALUE] + x
    e = high * before + we * old + xe + c[ETA]
    if c[FMA] == 0.0:
        e += u * reach
        s[PEAK] = raised(s[PEAK], reach * (1.0 + u))
    s[ERROR] = (e + u * abs(s[VALUE])) / (1.0 - u) + c[ADD_ETA]


@jit(**NO_ALLOCATION)
def _in_order_compensated(s, w, we, high, x, xe, c):
    """A state n + c of two words, |n + c - S| <= ERROR and |c| <= REST.

    n' + e2 = fl(w n) + x and, fully compensated, fl(w n) + e1 = w n exactly; the new
    rest is w c + e1 + e2 (and the decay's own low word times n), of which each part
    passes at most REST_ROUNDINGS roundings. |e1| <= u |w n|, |e2| <= u |n'| and
    |n'| <= |S'| + ERROR' + REST', which is solved for |n'|. Valid to all orders;
    numerics 2.6 gives its first and second order.
    """
    u = c[U]
    old = abs(s[VALUE])
    reach = high * (old + s[ERROR] + s[REST])
    s[VALUE] = w * s[VALUE] + x
    e = high * s[ERROR] + we * old + xe + c[ETA] + c[ADD_ETA]
    inherited = high * s[REST]
    if c[COMP] == 1.0:
        # The product's error is lost, and Kahan's own form rounds x - c.
        e += u * (reach + abs(x) + xe + s[REST])
    else:
        inherited += 2.0 * u * reach
    rounding = REST_ROUNDINGS * u
    high_word = abs(s[VALUE]) + e + (1.0 + 2.0 * rounding) * inherited
    high_word /= 1.0 - u * (1.0 + 2.0 * rounding)
    rest = inherited + u * high_word
    s[ERROR] = e + rounding * rest
    s[REST] = (1.0 + rounding) * rest
    s[PEAK] = raised(s[PEAK], max(reach * (1.0 + u), high_word))
