"""gla: S_t = diag(exp gk_t) S_{t-1} diag(exp gv_t) + k_t v_t^T.

Source: Yang et al., "Gated Linear Attention Transformers with Hardware-Efficient
Training" (2023), whose gates of the state are outer products of these two.
q, k, gk: [B, T, H, K]; v, gv: [B, T, H, V], gates natural logs, gv optional;
initial_state [B, H, K, V]; outputs o = K^-1/2 S_t^T q_t [B, T, H, V] and final_state
[B, H, K, V].
"""

from typing import Any

from scancheck.ops.heads import (
    KEYS,
    op_with_heads,
    per_key,
    per_key_pullback,
    per_lane,
    per_lane_back,
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
    value_gate_cotangent,
)

VALUES = ("B", "T", "H", "V")


def lower(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
    """w = exp(gk), z = exp(gv)."""
    log_w = per_key(tile["gk"], tile["v"].shape[2])
    written = written_and_read(tile)
    if "gv" in tile:
        log_z = per_lane(tile["gv"])[:, :, None]
        written |= {"z": log_z.exp(), "log_z": log_z}
    return Lowered(w=log_w.exp(), log_w=log_w, **written), carry


def lower_pullback(
    tile: Tensors, lowered: Lowered, cotangents: Cotangents
) -> dict[str, Any]:
    """dgk and dgv are the cotangents of log w and log z, summed over the other side."""
    gradients = written_and_read_pullback(tile, lowered, cotangents)
    gbar = gate_cotangent(lowered, cotangents).sum(3)
    gradients["gk"] = per_key_pullback(gbar, tile["gk"])
    if "gv" in tile:
        gbar = value_gate_cotangent(lowered, cotangents)[:, :, 0]
        gradients["gv"] = per_lane_back(gbar, tile["gv"].shape[2])
    return gradients


GLA = op_with_heads(
    "gla",
    (
        TensorSpec(name="q", axes=KEYS),
        TensorSpec(name="k", axes=KEYS),
        TensorSpec(name="v", axes=VALUES),
        TensorSpec(name="gk", axes=KEYS),
        TensorSpec(name="gv", axes=VALUES, required=False),
    ),
    lower=lower,
    lower_pullback=lower_pullback,
    constants=scale,
    # Decays of keys and of values multiply.
    spread_by=("gv",),
)
