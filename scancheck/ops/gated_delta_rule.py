"""gated_delta_rule: S' = exp(g_t) S_{t-1}; S_t = S' + beta_t k_t (v_t - S'^T k_t)^T.

Source: Yang et al., "Gated Delta Networks" (2024), equation 10. g [B, T, HV] is a
natural log; other tensors and the read-out K^-1/2 S_t^T q_t are those of delta_rule.
"""

from typing import Any

from scancheck.ops.delta_rule import QKV_BETA, delta_pullback, lower_delta
from scancheck.ops.heads import (
    GATES,
    op_with_heads,
    per_head,
    per_head_pullback,
    scale,
)
from scancheck.ops.normal_form import (
    Cotangents,
    Lowered,
    Tensors,
    TensorSpec,
    gate_cotangent,
)


def lower(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
    """w = exp(g), p = -beta k, q = w k."""
    return lower_delta(tile, per_head(tile["g"])), carry


def lower_pullback(
    tile: Tensors, lowered: Lowered, cotangents: Cotangents
) -> dict[str, Any]:
    """dg sums w wbar over the state and q qbar over keys: w is in q = w k too."""
    heads = tile["g"].shape[2]
    gbar = per_head_pullback(gate_cotangent(lowered, cotangents), heads)
    gbar = gbar + per_head_pullback(lowered.q * cotangents.q, heads)
    return delta_pullback(tile, lowered, cotangents) | {"g": gbar}


GATED_DELTA_RULE = op_with_heads(
    "gated_delta_rule",
    (*QKV_BETA, TensorSpec(name="g", axes=GATES)),
    lower=lower,
    lower_pullback=lower_pullback,
    constants=scale,
)
