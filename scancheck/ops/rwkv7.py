"""rwkv7: a decay for each key and a rank-one transition beside it.

    S_t = diag(exp w_t) S_{t-1} + b_t (a_t^T S_{t-1}) + k_t v_t^T;  o_t = S_t^T r_t

Source: Peng et al., "RWKV-7 Goose" (2025), in the form of
flash-linear-attention's dplr_delta_rule, scale 1: a^T reads the state before its decay.
r, w, k, a, b: [B, T, H, K], w the natural log of the decay; v [B, T, H, V];
initial_state [B, H, K, V]; outputs o [B, T, H, V] and final_state [B, H, K, V].
"""

from typing import Any

from scancheck.ops.heads import (
    KEYS,
    op_with_heads,
    per_key,
    per_key_pullback,
    per_lane,
    per_lane_back,
)
from scancheck.ops.normal_form import (
    Cotangents,
    Lowered,
    Tensors,
    TensorSpec,
    gate_cotangent,
    no_constants,
)


def lower(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
    """w = exp(w), p = b, q = a."""
    heads = tile["v"].shape[2]
    r, log_w, k, a, b = (per_key(tile[name], heads) for name in "rwkab")
    lowered = Lowered(
        w=log_w.exp(), v=per_lane(tile["v"]), k=k, r=r, log_w=log_w, p=b, q=a
    )
    return lowered, carry


def lower_pullback(
    tile: Tensors, lowered: Lowered, cotangents: Cotangents
) -> dict[str, Any]:
    """db = pbar, da = qbar; dw is the cotangent of log w, summed over lanes."""
    gbar = gate_cotangent(lowered, cotangents).sum(3)
    bars = {"r": cotangents.r, "w": gbar, "k": cotangents.k}
    bars |= {"a": cotangents.q, "b": cotangents.p}
    gradients = {name: per_key_pullback(bar, tile[name]) for name, bar in bars.items()}
    return gradients | {"v": per_lane_back(cotangents.v, tile["v"].shape[2])}


RWKV7 = op_with_heads(
    "rwkv7",
    (
        TensorSpec(name="r", axes=KEYS),
        TensorSpec(name="w", axes=KEYS),
        TensorSpec(name="k", axes=KEYS),
        TensorSpec(name="v", axes=("B", "T", "H", "V")),
        TensorSpec(name="a", axes=KEYS),
        TensorSpec(name="b", axes=KEYS),
    ),
    lower=lower,
    lower_pullback=lower_pullback,
    constants=no_constants,
)
