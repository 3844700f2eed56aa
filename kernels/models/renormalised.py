"""log=renorm: the factored form with every factor's exponent kept as an integer.

A scaled number (V, N) stands for V 2**N, with 1/2 <= |V| < 1, or V = 0, and an integer
N; scaling by a power of two rounds nothing. Inside each chunk, positions 1..C, S_in the
state carried into it, every operation rounded once:

    c_t         = running sums of the log decays l_1..l_t, in order or by Hillis-Steele
    n_t         = c_t log2(e) rounded to an integer
    h_t         = exp(c_t - n_t ln 2)          exp(c_t) = h_t 2**n_t, and
    f_t         = exp(n_t ln 2 - c_t)          exp(-c_t) = f_t 2**-n_t: rounded once
    (v_j, m_j)  = (f_j b_j, -n_j)              one product
    (V_t, N_t)  = running sums of the scaled numbers v_1 .. v_t, in the same order as c
    (W_t, M_t)  = S_in + (V_t, N_t)
    S_t         = (h_t W_t) 2**(M_t + n_t)     one product; the power of two rounds only
                                               a result below the normal range

A sum of two scaled numbers brings both to the larger exponent and adds once: what then
falls below the format's range is smaller than the larger operand by that whole range.
The exponents' errors are those of log=diff; nothing overflows but a state that does, so
that any decay will do save zero: a log decay of -inf gives NaN.

Contract: log=renorm, structure chunk(C, order of c and V, sequential).
"""

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.log_chunks import Chunks, ChunkSteps, StatesFrom
from scancheck.kernels.models.running import Items, running, running_sums


def renormalised(arithmetic: Arithmetic, steps: ChunkSteps, order: str) -> StatesFrom:
    """The states of every chunk as functions of the state carried into it."""

    def add(left: Items, right: Items) -> Items:
        return scaled_sum(arithmetic, left, right)

    sums = running_sums(arithmetic, steps.log_decay, order)
    decay, exponent = arithmetic.split_exp(sums)
    growth, _ = arithmetic.split_exp(-sums)
    terms = scaled(arithmetic.mul(growth, steps.drive), -exponent)
    total = running(add, terms, order)

    def states_from(chunks: Chunks, carried: Array) -> Array:
        part = tuple(x[:, chunks] for x in total)
        start = scaled(np.broadcast_to(carried, part[0].shape), 0)
        significand, power = add(part, start)
        product = arithmetic.mul(decay[:, chunks], significand)
        return arithmetic.scale(product, power + exponent[:, chunks])

    return states_from


def scaled(x: Array, exponent: Array | int) -> Items:
    """x 2**exponent as a scaled number; zeros, infinities and NaN keep `exponent`."""
    significand, power = np.frexp(x)
    return significand, power.astype(np.int64) + exponent


def scaled_sum(arithmetic: Arithmetic, left: Items, right: Items) -> Items:
    """The sum of two scaled numbers, one addition rounded."""
    (x, m), (y, n) = left, right
    # A zero has no exponent of its own.
    top = np.where(x == 0, n, np.where(y == 0, m, np.maximum(m, n)))
    total = arithmetic.add_wider(
        arithmetic.scale(x, m - top), arithmetic.scale(y, n - top)
    )
    return scaled(total, top)
