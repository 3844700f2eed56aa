"""The delta rule with no decay, one per head or one per key, as steps.

    D_t = diag(w_t) S_{t-1}
    S_t = D_t + k_t (beta_t (v_t - D_t^T k_t))^T        o_t = K**-0.5 S_t^T q_t

delta_rule: w = 1 (Yang et al., "Parallelizing Linear Transformers with the Delta Rule
over Sequence Length", 2024). gated_delta_rule: w = exp(g_t), g [B, T, HV] (Yang et al.,
"Gated Delta Networks", 2024). kda: w = exp(g_t), g [B, T, HV, K] ("Kimi Linear", 2025).
"""

from collections.abc import Callable
from functools import partial

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.step_family import (
    Family,
    Gradients,
    Inputs,
    attention_pullback,
    attention_steps,
    log_decay_bar,
)
from scancheck.kernels.models.step_form import Steps

Gate = Callable[[Array], Array]  # [T, B, HV, ...] -> [T, B, HV, K or 1]


def per_head(g: Array) -> Array:
    """[T, B, HV] -> [T, B, HV, 1]."""
    return g[..., None]


def per_key(g: Array) -> Array:
    """[T, B, HV, K] as it is."""
    return g


def _lower(gate: Gate, arithmetic: Arithmetic, inputs: Inputs) -> Steps:
    log_decay = gate(inputs["g"]) if "g" in inputs else None
    return attention_steps(
        arithmetic,
        inputs,
        decay=None if log_decay is None else arithmetic.exp(log_decay),
        log_decay=log_decay,
        beta=inputs["beta"][..., None],
    )


def _pullback(
    arithmetic: Arithmetic, inputs: Inputs, steps: Steps, bars: Steps
) -> Gradients:
    assert bars.beta is not None
    gradients = attention_pullback(arithmetic, inputs, bars)
    gradients["beta"] = bars.beta[..., 0]
    if "g" in inputs:
        gate = log_decay_bar(arithmetic, steps, bars)
        gradients["g"] = gate.reshape(inputs["g"].shape)
    return gradients


def _family(gate: Gate, *gates: str) -> Family:
    sequences = ("q", "k", "v", "beta", *gates)
    return Family(
        names=(*sequences, "initial_state"),
        optional=("initial_state",),
        sequences=frozenset(sequences),
        lower=partial(_lower, gate),
        lower_pullback=_pullback,
    )


DELTA_RULE = _family(per_head)
GATED_DELTA_RULE = _family(per_head, "g")
KDA = _family(per_key, "g")
