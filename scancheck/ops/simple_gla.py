"""simple_gla: S_t = exp(g_t) S_{t-1} + k_t v_t^T, a scalar gate for each head.

Source: Dao and Gu, "Transformers are SSMs" (2024), in the form of
flash-linear-attention's simple_gla. g [B, T, HV] is a natural log; other tensors and
the read-out K^-1/2 S_t^T q_t are those of linear_attention.
"""

from typing import Any

from scancheck.ops.heads import (
    GATES,
    QKV,
    op_with_heads,
    per_head,
    per_head_pullback,
    scale,
    written_and_read,
    written_and_read_pullback,
)
from scancheck.ops.normal_form import (
    Cotangents,
    Lowered,
    Tensors,
    TensorSpec,
    gate_cotangent,
)


def lower(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
    """w = exp(g)."""
    log_w = per_head(tile["g"])
    return Lowered(w=log_w.exp(), log_w=log_w, **written_and_read(tile)), carry


def lower_pullback(
    tile: Tensors, lowered: Lowered, cotangents: Cotangents
) -> dict[str, Any]:
    """dg is the cotangent of log w, summed over the state (numerics 2.9)."""
    gbar = gate_cotangent(lowered, cotangents)
    gradients = written_and_read_pullback(tile, lowered, cotangents)
    return gradients | {"g": per_head_pullback(gbar, tile["g"].shape[2])}


SIMPLE_GLA = op_with_heads(
    "simple_gla",
    (*QKV, TensorSpec(name="g", axes=GATES)),
    lower=lower,
    lower_pullback=lower_pullback,
    constants=scale,
)
