"""Gated linear attention as steps: a gate per key and, where given, one per value.

    S_t = diag(exp gk_t) S_{t-1} diag(exp gv_t) + k_t v_t^T
    o_t = K**-0.5 S_t^T q_t

Source: Yang et al., "Gated Linear Attention Transformers with Hardware-Efficient
Training" (2024). q, k, gk [B, T, H, K]; v, gv [B, T, H, V].
"""

from scancheck.kernels.models.arithmetic import Arithmetic
from scancheck.kernels.models.step_family import (
    Family,
    Gradients,
    Inputs,
    attention_pullback,
    attention_steps,
    gate_bar,
    log_decay_bar,
)
from scancheck.kernels.models.step_form import Steps


def _lower(arithmetic: Arithmetic, inputs: Inputs) -> Steps:
    value_decay = arithmetic.exp(inputs["gv"]) if "gv" in inputs else None
    return attention_steps(
        arithmetic,
        inputs,
        decay=arithmetic.exp(inputs["gk"]),
        log_decay=inputs["gk"],
        value_decay=value_decay,
    )


def _pullback(
    arithmetic: Arithmetic, inputs: Inputs, steps: Steps, bars: Steps
) -> Gradients:
    gradients = attention_pullback(arithmetic, inputs, bars)
    gradients["gk"] = log_decay_bar(arithmetic, steps, bars)
    if "gv" in inputs:
        gradients["gv"] = gate_bar(arithmetic, steps.value_decay, bars.value_decay)
    return gradients


GLA = Family(
    names=("q", "k", "v", "gk", "gv", "initial_state"),
    optional=("gv", "initial_state"),
    sequences=frozenset(("q", "k", "v", "gk", "gv")),
    lower=_lower,
    lower_pullback=_pullback,
)
