"""log=full: one signed log-cumsum-exp over the whole length.

Steps 1..T, S_0 the initial state, every operation rounded once; exp, log and log1p are
rounded once from their exact values:

    c_t          = running sums of the log decays l_1..l_t over the whole length, in
                   order or by Hillis-Steele
    (s_0, k_0)   = sign of S_0, log|S_0|                one log
    (s_j, k_j)   = sign of b_j, log|b_j| - c_j          one log, one subtraction
    (z_t, e_t)   = running signed log-sums of (s_0, k_0) .. (s_t, k_t), in the same
                   order; of two operands x has the larger log
                   (the earlier one of equals), y is the other one:
                   d = k_y - k_x                        one subtraction, d <= 0
                   r = exp(d)                           one exp
                   n = log1p(r), or log1p(-r) where the signs differ
                   (s_x, k_x + n)                       one addition
                   (s_x, k_x) itself where k_x is infinite
    S_t          = z_t exp(c_t + e_t)                   one addition, one exp

By Hillis-Steele the T + 1 items 0..T are one array. The exponent is the sum of two
numbers as large as the whole sequence's decay, so the error grows with |c_T| (numerics
2.5). Nothing leaves the range but a state that does. A log decay of -inf gives NaN.

Contract: log=full, structure sequential or tree.

Source: Heinsen, "Efficient parallelization of a ubiquitous sequential computation"
(2023), with signs kept beside the logarithms.
"""

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.running import Items, running, running_sums


def log_cumsum_exp(
    arithmetic: Arithmetic, log_decay: Array, drive: Array, initial: Array, order: str
) -> Array:
    """The states after each step, shaped as `drive`: [T, lanes]."""

    def add(left: Items, right: Items) -> Items:
        return signed_log_sum(arithmetic, left, right)

    sums = running_sums(arithmetic, log_decay, order)
    first = arithmetic.log(np.abs(initial))[None]
    logs = arithmetic.sub(arithmetic.log(np.abs(drive)), sums)
    sign, log = running(
        add,
        (
            np.sign(np.concatenate((initial[None], drive))),
            np.concatenate((first, logs)),
        ),
        order,
    )
    exponent = arithmetic.add(sums, log[1:])
    states: Array = sign[1:] * arithmetic.exp(exponent)
    return states


def signed_log_sum(arithmetic: Arithmetic, left: Items, right: Items) -> Items:
    """The sign and logarithm of the sum of two numbers given by theirs."""
    (left_sign, left_log), (right_sign, right_log) = left, right
    first = left_log >= right_log
    large, small = (
        np.where(first, left_log, right_log),
        np.where(first, right_log, left_log),
    )
    ratio = arithmetic.exp(arithmetic.sub(small, large))
    ratio = np.where(left_sign == right_sign, ratio, -ratio)
    log = arithmetic.add(large, arithmetic.log1p(ratio))
    log = np.where(np.isinf(large), large, log)
    return np.where(first, left_sign, right_sign), log
