"""kda: S' = diag(exp g_t) S_{t-1}; S_t = S' + beta_t k_t (v_t - S'^T k_t)^T.

Source: Kimi Team, "Kimi Linear" (2025), section 3: the gated delta rule with a gate for
each key. g [B, T, HV, K] is a natural log; other tensors and the read-out
K^-1/2 S_t^T q_t are those of delta_rule.
"""

from typing import Any

from scancheck.ops.delta_rule import QKV_BETA, delta_pullback, lower_delta
from scancheck.ops.heads import op_with_heads, per_key, per_key_pullback, scale
from scancheck.ops.normal_form import (
    Cotangents,
    Lowered,
    Tensors,
    TensorSpec,
    gate_cotangent,
)


def lower(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
    """w = exp(g), p = -beta k, q = w k."""
    return lower_delta(tile, per_key(tile["g"], tile["g"].shape[2])), carry


def lower_pullback(
    tile: Tensors, lowered: Lowered, cotangents: Cotangents
) -> dict[str, Any]:
    """dg sums w wbar over lanes, and has q qbar: w is in q = w k too."""
    gbar = gate_cotangent(lowered, cotangents).sum(3)[:, :, :, None]
    gbar = gbar + lowered.q * cotangents.q
    gradients = delta_pullback(tile, lowered, cotangents)
    return gradients | {"g": per_key_pullback(gbar, tile["g"])}


KDA = op_with_heads(
    "kda",
    (*QKV_BETA, TensorSpec(name="g", axes=("B", "T", "HV", "K"))),
    lower=lower,
    lower_pullback=lower_pullback,
    constants=scale,
)
