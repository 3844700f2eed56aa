"""rwkv6: the state is read before the update, with a bonus for the token itself.

    o_t = K^-1/2 (S_{t-1} + diag(u) k_t v_t^T)^T r_t
    S_t = diag(exp w_t) S_{t-1} + k_t v_t^T

Source: Peng et al., "Eagle and Finch" (2024), with the scale of flash-linear-attention.
r, k, w: [B, T, H, K], w the natural log of the decay; v [B, T, H, V]; u [H, K];
initial_state [B, H, K, V]; outputs o [B, T, H, V] and final_state [B, H, K, V].

The bonus is (sum over K of K^-1/2 r u k) v: it is added to what is read. A kernel may
add diag(u) k v^T to the state instead, as the first line has it, and so may its
backward: then products of every key and lane may underflow, which `losing` counts.
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
)
from scancheck.ops.normal_form import (
    Cotangents,
    Lowered,
    Tensors,
    TensorSpec,
    gate_cotangent,
)


def lower(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
    """w = exp(w), r = K^-1/2 r, read before the update."""
    heads = tile["v"].shape[2]
    log_w = per_key(tile["w"], heads)
    lowered = Lowered(
        w=log_w.exp(),
        v=per_lane(tile["v"]),
        k=per_key(tile["k"], heads),
        r=per_key(tile["r"] * tile["scale"], heads),
        log_w=log_w,
        reads_before=True,
    )
    return lowered, carry


def lower_pullback(
    tile: Tensors, lowered: Lowered, cotangents: Cotangents
) -> dict[str, Any]:
    """dw is the cotangent of log w, summed over lanes; dr is scaled."""
    gbar = gate_cotangent(lowered, cotangents).sum(3)
    return {
        "r": per_key_pullback(cotangents.r, tile["r"]) * tile["scale"],
        "k": per_key_pullback(cotangents.k, tile["k"]),
        "v": per_lane_back(cotangents.v, tile["v"].shape[2]),
        "w": per_key_pullback(gbar, tile["w"]),
    }


def _read_and_kept(tile: Tensors) -> tuple[Any, Any]:
    """K^-1/2 r and u k, both [B, T, H, K]: the bonus is their product over K."""
    read, kept = tile["r"] * tile["scale"], tile["u"][None, None] * tile["k"]
    return read.as_operand(), kept.as_operand()


def epilogue(tile: Tensors, o: Any) -> Any:
    """o + (sum over K of K^-1/2 r u k) v, [B, T, H, V]."""
    read, kept = _read_and_kept(tile)
    bonus = (read * kept).sum(3)[:, :, :, None].as_operand()
    whole = per_lane_back(o, tile["v"].shape[2]) + bonus * tile["v"]
    return whole.losing(lambda: _terms(tile["u"], read))


def _terms(u: Any, other: Any) -> Any:
    """Products below the normal range in a sum over K of u x y times `other`.

    x y, u x y and their product with it: eta |u| |other|, eta |other| and eta each.
    """
    lost = other.size * (u.size[None, None] + 1.0) + 1.0
    return lost.sum(3, keepdims=True)


def epilogue_pullback(tile: Tensors, o: Any, ybar: Any) -> tuple[Any, dict[str, Any]]:
    """With c the bonus, cbar = sum ybar v: what it adds to dr, dk, dv, and du."""
    read, kept = _read_and_kept(tile)
    bonus = (read * kept).sum(3)[:, :, :, None].as_operand()
    cbar = (ybar * tile["v"]).sum(3)[:, :, :, None].as_operand()
    read_bar, lanes = cbar * read, ybar.shape[3]

    # As `_terms`, in sums over lanes: of each, and for u over all tokens.
    def by_lane(other: Any) -> Any:
        whole = other.size.sum(3, keepdims=True)
        return whole * (tile["u"].size[None, None] + 1.0) + lanes

    def of_u() -> Any:
        k, v = (tile[name].size for name in ("k", "v"))
        whole = read.size * ybar.size.sum(3, keepdims=True)
        return (whole + k * v.sum(3, keepdims=True) + lanes).sum((0, 1))

    gradients = {
        "r": (cbar * kept * tile["scale"]).losing(lambda: by_lane(ybar) + 1.0),
        "u": (read_bar * tile["k"]).sum((0, 1)).losing(of_u),
        "k": (read_bar * tile["u"][None, None]).losing(lambda: by_lane(tile["v"])),
        "v": (bonus * ybar).losing(lambda: _terms(tile["u"], tile["k"])),
    }
    return per_lane(ybar), gradients


RWKV6 = op_with_heads(
    "rwkv6",
    (
        TensorSpec(name="r", axes=KEYS),
        TensorSpec(name="k", axes=KEYS),
        TensorSpec(name="v", axes=("B", "T", "H", "V")),
        TensorSpec(name="w", axes=KEYS),
        TensorSpec(name="u", axes=("H", "K")),
    ),
    lower=lower,
    lower_pullback=lower_pullback,
    constants=scale,
    epilogue=epilogue,
    epilogue_pullback=epilogue_pullback,
    reads_before=True,
)
