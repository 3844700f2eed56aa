"""log=factored: exp(c_t) times a running sum of exp(-c_j) b_j.

Inside each chunk, positions 1..C, S_in the state carried into it, every operation
rounded once and exp rounded once from its exact value:

    c_t   = running sums of the log decays l_1..l_t, in order or by Hillis-Steele
    v_j   = exp(-c_j) b_j                one exp (negation is exact), one product
    V_t   = running sums v_1 + .. + v_t, in the same order as c
    S_t   = exp(c_t) S_in + exp(c_t) V_t           two products, then one addition

The exponents' errors are those of log=diff. exp(-c_j) leaves the format's range when
the chunk decays by more than e^88 in fp32 (e^11 in fp16): infinity, then NaN where it
meets exp(c_t) = 0. Under positive gates exp(c_t) does.

Contract: log=factored, structure chunk(C, order of c and V, sequential).
"""

from scancheck.kernels.models.arithmetic import Arithmetic
from scancheck.kernels.models.log_chunks import (
    ChunkSteps,
    StatesFrom,
    inherited_and_own,
)
from scancheck.kernels.models.running import running_sums


def factored_exponentials(
    arithmetic: Arithmetic, steps: ChunkSteps, order: str
) -> StatesFrom:
    """The states of every chunk as functions of the state carried into it."""
    sums = running_sums(arithmetic, steps.log_decay, order)
    grown = arithmetic.mul(arithmetic.exp(-sums), steps.drive)
    total = running_sums(arithmetic, grown, order)
    own = arithmetic.mul(arithmetic.exp(sums), total)
    return inherited_and_own(arithmetic, sums, own)
