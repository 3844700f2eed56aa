"""log=segsum: the exponent of every pair of steps is summed on its own.

Inside each chunk, positions 1..C, S_in the state carried into it, every operation
rounded once and exp rounded once from its exact value:

    s_tj  = running sums of the log decays l_{j+1}..l_t, started anew for every j, in
            order or by Hillis-Steele (column j of the masked matrix); s_tt = 0
    c_t   = s_t0, the sum from the chunk's start
    L_t   = (..(exp(s_t1) b_1 + exp(s_t2) b_2) + ..) + b_t   products rounded, j upwards
    S_t   = exp(c_t) S_in + L_t                               one product, one addition

No exponent is a difference, so that an exponent's error is that of its own t - j gates
(numerics 2.5), and a log decay of -inf forgets the past as it should. C^2 / 2 sums.

Contract: log=segsum, structure chunk(C, order of s, sequential).
"""

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.log_chunks import (
    ChunkSteps,
    StatesFrom,
    inherited_and_own,
)
from scancheck.kernels.models.running import running_sums


def segment_sum(arithmetic: Arithmetic, steps: ChunkSteps, order: str) -> StatesFrom:
    """The states of every chunk as functions of the state carried into it."""
    own = np.zeros_like(steps.drive)
    for j in range(len(own)):
        sums = _after(arithmetic, steps.log_decay, j, order)
        term = arithmetic.mul(arithmetic.exp(sums), steps.drive[j])
        own[j:] = arithmetic.add(own[j:], term)
    from_start = running_sums(arithmetic, steps.log_decay, order)
    return inherited_and_own(arithmetic, from_start, own)


def _after(arithmetic: Arithmetic, log_decay: Array, j: int, order: str) -> Array:
    """s_tj for t = j, ..., C: zero, then the sums of the gates after j."""
    sums = running_sums(arithmetic, log_decay[j + 1 :], order)
    return np.concatenate((np.zeros_like(log_decay[:1]), sums))
