"""delta_rule: a key's value is replaced, not added to.

    S_t = S_{t-1} + beta_t k_t (v_t - S_{t-1}^T k_t)^T;  o_t = K^-1/2 S_t^T q_t

Source: Schlag et al., "Linear Transformers Are Secretly Fast Weight Programmers"
(2021); Yang et al., "Parallelizing Linear Transformers with the Delta
Rule" (2024). q, k: [B, T, H, K], keys as they are given; v [B, T, HV, V];
beta [B, T, HV]; initial_state [B, HV, K, V]; outputs o [B, T, HV, V] and final_state
[B, HV, K, V].

Its gated forms decay the state first, S' = diag(w_t) S_{t-1}:

    S_t = S' + beta k (v - S'^T k)^T = (diag(w) - beta k (w k)^T) S_{t-1} + beta k v^T

so that p = -beta k and q = w k. What they share is here.
"""

from typing import Any

from scancheck.ops.heads import (
    GATES,
    QKV,
    op_with_heads,
    per_head,
    per_head_pullback,
    per_key,
    per_key_pullback,
    per_lane_back,
    same_at_all_times,
    scale_and_no_decay,
    written_and_read,
)
from scancheck.ops.normal_form import Cotangents, Lowered, Tensors, TensorSpec

QKV_BETA = (*QKV, TensorSpec(name="beta", axes=GATES))


def lower_delta(tile: Tensors, log_w: Any) -> Lowered:
    """The normal form for a gate log_w [G, T, K or 1, 1]; None is a decay of one."""
    fields = written_and_read(tile)
    k = fields.pop("k")
    w = same_at_all_times(tile["decay"], tile) if log_w is None else log_w.exp()
    strength = per_head(tile["beta"])
    written = strength * k
    q = k if log_w is None else w * k
    return Lowered(
        w=w,
        log_w=log_w,
        k=written,
        p=-written,
        q=q,
        erases_decayed=True,
        key=k,
        strength=strength,
        **fields,
    )


def delta_pullback(
    tile: Tensors, lowered: Lowered, cotangents: Cotangents
) -> dict[str, Any]:
    """Cotangents of q, k, v and beta: k is in beta k, written and erased, and in q."""
    heads = tile["v"].shape[2]
    k, beta = per_key(tile["k"], heads), per_head(tile["beta"])
    written = cotangents.k + -cotangents.p
    read = cotangents.q if lowered.log_w is None else lowered.w * cotangents.q
    kbar = beta * written + read
    return {
        "q": per_key_pullback(cotangents.r * tile["scale"], tile["q"]),
        "k": per_key_pullback(kbar, tile["k"]),
        "v": per_lane_back(cotangents.v, heads),
        "beta": per_head_pullback(written * k, heads),
    }


def lower(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
    """w = 1, p = -beta k, q = k."""
    return lower_delta(tile, None), carry


DELTA_RULE = op_with_heads(
    "delta_rule",
    QKV_BETA,
    lower=lower,
    lower_pullback=delta_pullback,
    constants=scale_and_no_decay,
    diagonal=False,
    algebraic=True,
)
