"""gated_delta_product: several delta steps for each token, after one decay.

    S' = exp(g_t) S_{t-1}
    S' = S' + beta_tj k_tj (v_tj - S'^T k_tj)^T        for j = 0 .. M - 1
    S_t = S';  o_t = K^-1/2 S_t^T q_t

Source: Siems et al., "DeltaProduct" (2025), section 3; the decay of Gated DeltaNet.
q [B, T, H, K]; k [B, T, M, H, K]; v [B, T, M, H, V]; beta [B, T, M, H]; g [B, T, H] a
natural log; initial_state [B, H, K, V]; outputs o [B, T, H, V] and final_state
[B, H, K, V]. M counts the steps of a token; flash-linear-attention's k [B, T M, H, K]
is the same memory.

In the normal form a token is M steps of the gated delta rule: the first one decays, and
the readout of the others is zero.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from scancheck.errors import CaseInvalid
from scancheck.ops.heads import (
    KEYS,
    op_with_heads,
    per_head,
    per_head_pullback,
    per_key,
    per_key_pullback,
    per_lane,
    per_lane_back,
    scale,
)
from scancheck.ops.normal_form import (
    Cotangents,
    FloatArray,
    Lowered,
    Tensors,
    TensorSpec,
    gate_cotangent,
)


def constants(sizes: Mapping[str, int]) -> dict[str, FloatArray]:
    """The scale [1], and what the steps of a token have that say nothing [1]."""
    return scale(sizes) | {"one": np.ones(1), "zero": np.zeros(1)}


def in_steps(x: Any) -> Any:
    """[B, T, M, ...] -> [B, T M, ...]."""
    batch, tokens, substeps, *rest = x.shape
    return x.reshape(batch, tokens * substeps, *rest)


def _filled(value: Any, shape: tuple[int, ...]) -> Any:
    """A constant [1] in a shape."""
    return value[[0] * int(np.prod(shape))].reshape(*shape)


def first_of_each(x: Any, rest: Any, substeps: int) -> Any:
    """[G, T, 1, 1] at the first step of a token, else `rest`: [G, T M, 1, 1]."""
    groups, tokens = x.shape[:2]
    others = _filled(rest, (groups, tokens, substeps - 1, 1))
    return x.joined(others, 2).reshape(groups, tokens * substeps, 1, 1)


def last_of_each(x: Any, rest: Any, substeps: int) -> Any:
    """[G, T, N] at the last step of each token, `rest` at others: [G, T M, N]."""
    groups, tokens, width = x.shape
    others = _filled(rest, (groups, tokens, substeps - 1, width))
    joined = others.joined(x.reshape(groups, tokens, 1, width), 2)
    return joined.reshape(groups, tokens * substeps, width)


def taken_last(x: Any, substeps: int) -> Any:
    """[G, T M, ...] -> [G, T, ...], the last step of each token."""
    groups, steps, *rest = x.shape
    return x.reshape(groups, steps // substeps, substeps, *rest)[:, :, substeps - 1]


def lower(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
    """w = exp(g) or one, p = -beta k, q = w k, and r = K^-1/2 q or zero."""
    heads, substeps = tile["v"].shape[3], tile["k"].shape[2]
    k = per_key(in_steps(tile["k"]), heads)
    log_w = per_head(tile["g"])
    w = first_of_each(log_w.exp(), tile["one"], substeps)
    strength = per_head(in_steps(tile["beta"]))
    written = strength * k
    reads = per_key(tile["q"] * tile["scale"], heads)[:, :, :, 0]
    lowered = Lowered(
        w=w,
        log_w=first_of_each(log_w, tile["zero"], substeps),
        v=per_lane(in_steps(tile["v"])),
        k=written,
        r=last_of_each(reads, tile["zero"], substeps)[:, :, :, None],
        p=-written,
        q=w * k,
        erases_decayed=True,
        key=k,
        strength=strength,
    )
    return lowered, carry


def lower_pullback(
    tile: Tensors, lowered: Lowered, cotangents: Cotangents
) -> dict[str, Any]:
    """Those of the gated delta rule; g and q have those of one step of a token."""
    heads, substeps = tile["v"].shape[3], tile["k"].shape[2]
    keys = in_steps(tile["k"])
    k, beta = per_key(keys, heads), per_head(in_steps(tile["beta"]))
    written = cotangents.k + -cotangents.p
    kbar = beta * written + lowered.w * cotangents.q
    # g enters through w alone, and w is in q = w k too.
    gate = gate_cotangent(lowered, cotangents).sum((2, 3))
    gate = gate + (lowered.q * cotangents.q).sum((2, 3))
    groups, steps = gate.shape
    first = gate.reshape(groups, steps // substeps, substeps)[:, :, 0]
    return {
        "q": per_key_pullback(taken_last(cotangents.r, substeps), tile["q"])
        * tile["scale"],
        "k": per_key_pullback(kbar, keys).reshape(*tile["k"].shape),
        "v": per_lane_back(cotangents.v, heads).reshape(*tile["v"].shape),
        "beta": per_head_pullback(written * k, heads).reshape(*tile["beta"].shape),
        "g": per_head_pullback(first[:, :, None, None], heads),
    }


def epilogue(tile: Tensors, o: Any) -> Any:
    """What the last step of each token reads, [B, T, H, V]."""
    substeps = tile["k"].shape[2]
    return per_lane_back(taken_last(o, substeps), tile["v"].shape[3])


def epilogue_pullback(tile: Tensors, o: Any, ybar: Any) -> tuple[Any, dict[str, Any]]:
    """The cotangent of the output is that of what the last step reads."""
    return last_of_each(per_lane(ybar), tile["zero"], tile["k"].shape[2]), {}


def substeps_of(sizes: Mapping[str, int]) -> int:
    """M, the steps of a token; raises CaseInvalid where there is none."""
    if sizes["M"] < 1:
        raise CaseInvalid(
            f"size M: expected at least one step a token; got {sizes['M']}"
        )
    return sizes["M"]


GATED_DELTA_PRODUCT = replace(
    op_with_heads(
        "gated_delta_product",
        (
            TensorSpec(name="q", axes=KEYS),
            TensorSpec(name="k", axes=("B", "T", "M", "H", "K")),
            TensorSpec(name="v", axes=("B", "T", "M", "H", "V")),
            TensorSpec(name="beta", axes=("B", "T", "M", "H")),
            TensorSpec(name="g", axes=("B", "T", "H")),
        ),
        lower=lower,
        lower_pullback=lower_pullback,
        constants=constants,
        epilogue=epilogue,
        epilogue_pullback=epilogue_pullback,
        diagonal=False,
    ),
    size_names=("B", "T", "M", "H", "K", "V"),
    substeps=substeps_of,
)
