"""RWKV-7 as steps: a decay per key and a rank-one term on the undecayed state.

    S_t = diag(exp w_t) S_{t-1} + b_t (a_t^T S_{t-1}) + k_t v_t^T        o_t = S_t^T r_t

Source: Peng et al., "RWKV-7 Goose" (2025). r, w, k, a, b [B, T, H, K];
v [B, T, H, V].
"""

from scancheck.kernels.models.arithmetic import Arithmetic
from scancheck.kernels.models.step_family import (
    Family,
    Gradients,
    Inputs,
    log_decay_bar,
)
from scancheck.kernels.models.step_form import Steps


def _lower(arithmetic: Arithmetic, inputs: Inputs) -> Steps:
    return Steps(
        keys=inputs["k"],
        values=inputs["v"],
        reads=inputs["r"],
        decay=arithmetic.exp(inputs["w"]),
        log_decay=inputs["w"],
        left=inputs["b"],
        right=inputs["a"],
    )


def _pullback(
    arithmetic: Arithmetic, inputs: Inputs, steps: Steps, bars: Steps
) -> Gradients:
    assert bars.left is not None and bars.right is not None
    return {
        "r": bars.reads,
        "w": log_decay_bar(arithmetic, steps, bars),
        "k": bars.keys,
        "v": bars.values,
        "a": bars.right,
        "b": bars.left,
    }


RWKV7 = Family(
    names=("r", "w", "k", "v", "a", "b", "initial_state"),
    optional=("initial_state",),
    sequences=frozenset(("r", "w", "k", "v", "a", "b")),
    lower=_lower,
    lower_pullback=_pullback,
)
