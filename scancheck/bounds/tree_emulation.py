"""Running bounds of orders that a contract names: the kernel's own tree, emulated.

A counted bound holds for every tree of a depth, so it scales with sums of magnitudes.
Where `Structure.order` names the order, the same combinations are run in fp64 on
(A, B, eA, eB), left before right (numerics 2.3, 2.14; with absolute errors of 2.4):

    A = Ar Al     eA = |Ar| eAl + eAr (|Al| + eAl), then + u (|A| + eA) + eta
    p = Ar Bl     ep = |Ar| eBl + eAr (|Bl| + eBl), then + u (|p| + ep) + eta
    B = p + Br    eB = ep + eBr,                    then + u (|B| + eB) + add_eta

which is valid to all orders in u and knows what cancels. An fma leaves out the second
line's roundings, so it stays below. What a name promises:

    stepwise        the steps of a chunk are combined one after another
    hillis_steele   by doubling (Hillis and Steele, CACM 29, 1986); a tree of the whole
                    length is one chunk
    both            chunks begin at the first step; a state after a step is the state
                    before its chunk, passed through the chunk's steps in that order or
                    joined to their combination, S = A S_before + B; the state after a
                    chunk's last step, by either way, is carried on, rounded as it is
                    kept; outputs are read from these states

Errors only grow with those of the operands; so the larger one of the two ways, taken at
every step and carry, holds for all kernels of a name, and any mixture of them. A kernel
that forms an output by matrix products, without its state, has no name.

Doubling is run as steps arrive: level j of a step needs level j of the step 2^j before,
which a ring of 2^j entries holds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.error_scan import ADD_ETA, ETA, STATE_ETA, STATE_U, U
from scancheck.bounds.error_tile import pick
from scancheck.bounds.rules import Rules
from scancheck.oracles.jit import jit

FloatArray = NDArray[np.float64]

# Numbers that the emulation of one case may keep, 64 MiB of them. Doubling keeps some
# ten for each step of a chunk; beyond this the counted bound stands alone.
MEMORY_LIMIT = 2**23

# What is kept of one entry: the state before the chunk and the last one, each with its
# error; then pairs (A, eA, B, eB); then states of the chunk from the carried one.
CARRY, CARRY_ERROR, LAST, LAST_ERROR = range(4)
HEAD = 4
PAIR = 4
STATE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """A case on its way through the emulated order."""

    chunk: int  # steps per chunk
    levels: int  # of the tree inside a chunk; 0 where steps follow one another
    tree: bool  # whether the inside of a chunk is a tree
    every: int  # the carried state is stored before every so many steps
    memory: FloatArray  # [G, K, L, numbers kept], updated in place


def emulation_for(
    rules: Rules, value: FloatArray, error: FloatArray, total: int
) -> Emulation | None:
    """The emulation that starts from a state [G, K, L], or None where there is none.

    There is none for an order that is not named, for compensated kernels, for states
    that are rounded inside a chunk, and beyond `MEMORY_LIMIT`.
    """
    structure = rules.structure
    if structure.order == "any" or rules.comp != "none":
        return None
    if rules.state_u > 0.0 and rules.state_every % (structure.chunk or total + 1):
        return None
    chunk = max(1, min(structure.chunk or total, total))
    tree = structure.order == "hillis_steele"
    levels = (chunk - 1).bit_length() if tree else 0
    numbers = HEAD + PAIR + STATE
    if tree:
        numbers = HEAD + PAIR * (2**levels - 1) + STATE * chunk
    if value.size * numbers > MEMORY_LIMIT:
        return None
    memory = np.zeros((*value.shape, numbers))
    memory[..., LAST], memory[..., LAST_ERROR] = value, error
    return Emulation(
        chunk=chunk,
        levels=levels,
        tree=tree,
        every=rules.state_every,
        memory=memory,
    )


@jit()
def _product(a, ea, left, eleft, c):
    """A product of two numbers with errors, rounded once."""
    value = a * left
    e = abs(a) * eleft + ea * (abs(left) + eleft)
    return value, e + (c[U] * (abs(value) + e) + c[ETA])


@jit()
def _applied(a, ea, b, eb, left, eleft, c):
    """The step (a, b) on `left`: a product and a sum, each rounded."""
    product, e = _product(a, ea, left, eleft, c)
    value = product + b
    e += eb
    return value, e + (c[U] * (abs(value) + e) + c[ADD_ETA])


@jit()
def _keep(m, at, a, ea, b, eb):
    """Writes a pair to its place."""
    m[at], m[at + 1], m[at + 2], m[at + 3] = a, ea, b, eb


@jit()
def _next_in_order(m, place, a, ea, b, eb, c):
    """The chunk's prefix up to this step, and the state from the carried one."""
    states = HEAD + PAIR
    left, eleft = m[CARRY], m[CARRY_ERROR]
    if place > 0:
        left, eleft = m[states], m[states + 1]
    state, error = _applied(a, ea, b, eb, left, eleft, c)
    m[states], m[states + 1] = state, error
    if place > 0:
        left_a, left_ea = m[HEAD], m[HEAD + 1]
        left_b, left_eb = m[HEAD + 2], m[HEAD + 3]
        b, eb = _applied(a, ea, b, eb, left_b, left_eb, c)
        a, ea = _product(a, ea, left_a, left_ea, c)
    _keep(m, HEAD, a, ea, b, eb)
    return a, ea, b, eb, state, error


@jit()
def _next_by_doubling(m, place, levels, a, ea, b, eb, c):
    """The chunk's prefix up to this step, and the state from the carried one.

    A step's last combination is with a prefix that starts at the chunk's first step; a
    kernel that joined the carried state to that step has a state there.
    """
    states = HEAD + PAIR * (2**levels - 1)
    state, error = 0.0, 0.0
    if place == 0:
        state, error = _applied(a, ea, b, eb, m[CARRY], m[CARRY_ERROR], c)
    for level in range(levels):
        reach = 2**level
        at = HEAD + PAIR * (reach - 1 + place % reach)
        left_a, left_ea, left_b, left_eb = m[at], m[at + 1], m[at + 2], m[at + 3]
        _keep(m, at, a, ea, b, eb)
        if place >= reach:
            if place < 2 * reach:
                before = states + STATE * (place - reach)
                left, eleft = m[before], m[before + 1]
                state, error = _applied(a, ea, b, eb, left, eleft, c)
            b, eb = _applied(a, ea, b, eb, left_b, left_eb, c)
            a, ea = _product(a, ea, left_a, left_ea, c)
    m[states + STATE * place], m[states + STATE * place + 1] = state, error
    return a, ea, b, eb, state, error


@jit()
def emulate(w, x, m, chunk, levels, tree, every, c, running, start, begin, stop):
    """Runs the tasks begin..stop of a tile of error numbers, one per group and lane.

    w, x [4, G, T, K, L or 1]; m [G, K, L, numbers kept] in place; running
    [G, T, K, L] receives the error of the state after each step.
    """
    _, _, keys, lanes = running.shape
    for task in range(begin, stop):
        g, lane = task // lanes, task % lanes
        for k in range(keys):
            one = m[g, k, lane]
            for t in range(x.shape[2]):
                here = start + t
                place = here % chunk
                if place == 0:
                    kept = one[LAST_ERROR]
                    if here % every == 0:
                        kept += c[STATE_U] * (abs(one[LAST]) + kept) + c[STATE_ETA]
                    one[CARRY], one[CARRY_ERROR] = one[LAST], kept
                wt, xt = pick(w, g, t, k, lane), pick(x, g, t, k, lane)
                a, ea, b, eb = wt[0], wt[2], xt[0], xt[2]
                if tree:
                    a, ea, b, eb, state, error = _next_by_doubling(
                        one, place, levels, a, ea, b, eb, c
                    )
                else:
                    a, ea, b, eb, state, error = _next_in_order(
                        one, place, a, ea, b, eb, c
                    )
                _, other = _applied(a, ea, b, eb, one[CARRY], one[CARRY_ERROR], c)
                one[LAST], one[LAST_ERROR] = state, max(error, other)
                running[g, t, k, lane] = one[LAST_ERROR]
