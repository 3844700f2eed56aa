"""RWKV-6 as steps: each token reads the state before its own update, with a bonus.

    o_t = K**-0.5 (S_{t-1} + diag(u) k_t v_t^T)^T r_t
    S_t = diag(exp w_t) S_{t-1} + k_t v_t^T

Source: Peng et al., "Eagle and Finch" (2024). r, k, w [B, T, H, K];
v [B, T, H, V]; u [H, K].
"""

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic
from scancheck.kernels.models.reduction import sum_over_tokens
from scancheck.kernels.models.step_family import (
    Family,
    Gradients,
    Inputs,
    log_decay_bar,
    scaled_reads,
)
from scancheck.kernels.models.step_form import Steps


def _lower(arithmetic: Arithmetic, inputs: Inputs) -> Steps:
    return Steps(
        keys=inputs["k"],
        values=inputs["v"],
        reads=scaled_reads(arithmetic, inputs["r"]),
        decay=arithmetic.exp(inputs["w"]),
        log_decay=inputs["w"],
        bonus=np.broadcast_to(inputs["u"], inputs["k"].shape),
    )


def _pullback(
    arithmetic: Arithmetic, inputs: Inputs, steps: Steps, bars: Steps
) -> Gradients:
    assert bars.bonus is not None
    return {
        "r": scaled_reads(arithmetic, bars.reads),
        "k": bars.keys,
        "v": bars.values,
        "w": log_decay_bar(arithmetic, steps, bars),
        "u": sum_over_tokens(arithmetic, bars.bonus),
    }


RWKV6 = Family(
    names=("r", "k", "v", "w", "u", "initial_state"),
    optional=("initial_state",),
    sequences=frozenset(("r", "k", "v", "w")),
    lower=_lower,
    lower_pullback=_pullback,
)
