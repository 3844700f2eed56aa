"""log=ratio: cumulative products of the decays, each term divided by its own.

Inside each chunk, positions 1..C, S_in the state carried into it, every operation
rounded once; a_t is the decay as given, or exp(l_t) rounded once from its exact value:

    p_t   = running products a_1 .. a_t, in order or by Hillis-Steele
    q_j   = b_j / p_j                              one division
    Q_t   = running sums q_1 + .. + q_t, in the same order as p
    S_t   = p_t (S_in + Q_t)                       one addition, then one product

A decay of zero, or a product below the format's range (0.5^149 in fp32), gives 0 / 0 or
infinity times 0: NaN. A product that is subnormal has lost digits that the quotient
cannot give back.

Contract: log=ratio, structure chunk(C, order of p and Q, sequential).
"""

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.log_chunks import Chunks, ChunkSteps, StatesFrom
from scancheck.kernels.models.running import running_products, running_sums


def product_ratio(arithmetic: Arithmetic, steps: ChunkSteps, order: str) -> StatesFrom:
    """The states of every chunk as functions of the state carried into it."""
    products = running_products(arithmetic, steps.decay, order)
    shares = running_sums(arithmetic, arithmetic.div(steps.drive, products), order)

    def states_from(chunks: Chunks, carried: Array) -> Array:
        # The initial state may be given in a wider format.
        total = arithmetic.add_wider(shares[:, chunks], carried)
        return arithmetic.mul(products[:, chunks], total)

    return states_from
