"""log=diff: every decay is the exponential of a difference of sums.

Inside each chunk, positions 1..C, S_in the state carried into it, every operation
rounded once and exp rounded once from its exact value:

    c_t   = running sums of the log decays l_1..l_t, in order or by Hillis-Steele
    w_tj  = exp(c_t - c_j)              one subtraction, one exp; w_tt = exp(0) = 1
    L_t   = (..(w_t1 b_1 + w_t2 b_2) + ..) + w_tt b_t       products rounded, j upwards
    S_t   = exp(c_t) S_in + L_t                               one product, one addition

The difference of two long sums keeps their absolute error, so the error grows with the
chunk (numerics 2.5). A log decay of -inf gives NaN: -inf - (-inf) has no value.

Contract: log=diff, structure chunk(C, order of c, sequential).
"""

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic
from scancheck.kernels.models.log_chunks import (
    ChunkSteps,
    StatesFrom,
    inherited_and_own,
)
from scancheck.kernels.models.running import running_sums


def log_difference(arithmetic: Arithmetic, steps: ChunkSteps, order: str) -> StatesFrom:
    """The states of every chunk as functions of the state carried into it."""
    sums = running_sums(arithmetic, steps.log_decay, order)
    own = np.zeros_like(steps.drive)
    # All t >= j take their j-th term together: each sum over j still runs upwards.
    for j in range(len(own)):
        decay = arithmetic.exp(arithmetic.sub(sums[j:], sums[j]))
        term = arithmetic.mul(decay, steps.drive[j])
        own[j:] = arithmetic.add(own[j:], term)
    return inherited_and_own(arithmetic, sums, own)
