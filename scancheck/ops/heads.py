"""Tensors with heads, [B, T, heads, ...], in the normal form and back.

A group is one batch row and value head, G = B HV; its lanes are the V value columns and
it has K keys. HV is a multiple of H, and value head j has the query and key of head
j // (HV / H), as in grouped-query attention (Ainslie et al., "GQA", 2023). An op
without HV has as many value heads as key heads.

What attention-like ops share beyond layouts is here too: k v^T is written, the
read-out is q scaled by K^-1/2, and the output is what is read.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from scancheck.errors import CaseInvalid
from scancheck.ops.normal_form import (
    Cotangents,
    FloatArray,
    Lowered,
    Op,
    Tensors,
    TensorSpec,
)

KEYS = ("B", "T", "H", "K")
VALUES = ("B", "T", "HV", "V")
GATES = ("B", "T", "HV")
QKV = (
    TensorSpec(name="q", axes=KEYS),
    TensorSpec(name="k", axes=KEYS),
    TensorSpec(name="v", axes=VALUES),
)


def per_key(x: Any, heads: int) -> Any:
    """[B, T, H, K] -> [B heads, T, K, 1], a head repeated for each that shares it."""
    batch, steps, own, keys = x.shape
    x = x.transpose(0, 2, 1, 3)
    if own != heads:
        x = x[:, [head // (heads // own) for head in range(heads)]]
    return x.reshape(batch * heads, steps, keys, 1)


def per_key_pullback(bar: Any, like: Any) -> Any:
    """[B heads, T, K, 1] -> [B, T, H, K] of `like`, summed over repeated heads."""
    batch, steps, own, keys = like.shape
    heads = bar.shape[0] // max(1, batch)
    bar = bar.reshape(batch, own, max(1, heads // own), steps, keys)
    bar = bar.as_part().sum(2) if heads != own else bar[:, :, 0]
    return bar.transpose(0, 2, 1, 3)


def per_lane(x: Any) -> Any:
    """[B, T, HV, V] -> [B HV, T, V]."""
    batch, steps, heads, lanes = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch * heads, steps, lanes)


def per_lane_back(x: Any, heads: int) -> Any:
    """[B HV, T, V] -> [B, T, HV, V]."""
    groups, steps, lanes = x.shape
    x = x.reshape(groups // heads, heads, steps, lanes)
    return x.transpose(0, 2, 1, 3)


def per_head(x: Any) -> Any:
    """[B, T, HV] -> [B HV, T, 1, 1]."""
    batch, steps, heads = x.shape
    return x.transpose(0, 2, 1).reshape(batch * heads, steps, 1, 1)


def per_head_pullback(bar: Any, heads: int) -> Any:
    """[B HV, T, K, L] -> [B, T, HV], summed over keys and lanes."""
    groups, steps = bar.shape[:2]
    bar = bar.sum((2, 3)).reshape(groups // heads, heads, steps)
    return bar.transpose(0, 2, 1)


def same_at_all_times(x: Any, tile: Tensors) -> Any:
    """A constant of each value head, [HV] -> [B HV, T, 1, 1]."""
    batch, steps, heads, _ = tile["v"].shape
    x = x[list(range(heads)) * batch]
    return x.reshape(batch * heads, 1, 1, 1)[:, [0] * steps]


def scale(sizes: Mapping[str, int]) -> dict[str, FloatArray]:
    """K^-1/2 [1]: Vaswani et al., "Attention is all you need" (2017), 3.2.1."""
    return {"scale": np.full(1, sizes["K"] ** -0.5)}


def scale_and_no_decay(sizes: Mapping[str, int]) -> dict[str, FloatArray]:
    """The scale [1], and a decay of one for each value head [HV]."""
    return scale(sizes) | {"decay": np.ones(value_heads(sizes))}


def written_and_read(tile: Tensors) -> dict[str, Any]:
    """k, v, r = K^-1/2 q of the normal form."""
    heads = tile["v"].shape[2]
    return {
        "k": per_key(tile["k"], heads),
        "v": per_lane(tile["v"]),
        "r": per_key(tile["q"] * tile["scale"], heads),
    }


def written_and_read_pullback(
    tile: Tensors, lowered: Lowered, cotangents: Cotangents
) -> dict[str, Any]:
    """Cotangents of q, k and v: those of r (scaled), k and v, repeats summed."""
    return {
        "q": per_key_pullback(cotangents.r * tile["scale"], tile["q"]),
        "k": per_key_pullback(cotangents.k, tile["k"]),
        "v": per_lane_back(cotangents.v, tile["v"].shape[2]),
    }


def epilogue(tile: Tensors, o: Any) -> Any:
    """What is read, [B, T, HV, V]."""
    return per_lane_back(o, tile["v"].shape[2])


def epilogue_pullback(tile: Tensors, o: Any, ybar: Any) -> tuple[Any, dict[str, Any]]:
    """The cotangent of the output is that of what is read."""
    return per_lane(ybar), {}


def value_heads(sizes: Mapping[str, int]) -> int:
    """HV, or H of an op without it; raises CaseInvalid where H does not divide HV."""
    keys, values = sizes["H"], sizes.get("HV", sizes["H"])
    if keys < 1 or values % keys:
        raise CaseInvalid(f"size HV: expected a multiple of H = {keys}; got {values}")
    return values


def group_shape(sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """G, K, L of the normal form."""
    return sizes["B"] * value_heads(sizes), sizes["K"], sizes["V"]


def state_in(state: Any, sizes: Mapping[str, int]) -> Any:
    """[B, HV, K, V] -> S [B HV, K, V]."""
    batch, heads, keys, lanes = state.shape
    return state.reshape(batch * heads, keys, lanes)


def state_out(state: Any, sizes: Mapping[str, int]) -> Any:
    """S [B HV, K, V] -> [B, HV, K, V]."""
    groups, keys, lanes = state.shape
    heads = value_heads(sizes)
    return state.reshape(groups // heads, heads, keys, lanes)


def op_with_heads(
    name: str,
    inputs: tuple[TensorSpec, ...],
    *,
    lower: Callable[[Tensors, Any], tuple[Lowered, Any]],
    lower_pullback: Callable[[Tensors, Lowered, Cotangents], dict[str, Any]],
    constants: Callable[[Mapping[str, int]], dict[str, FloatArray]],
    epilogue: Callable[[Tensors, Any], Any] = epilogue,
    epilogue_pullback: Callable[
        [Tensors, Any, Any], tuple[Any, dict[str, Any]]
    ] = epilogue_pullback,
    reads_before: bool = False,
    diagonal: bool = True,
    factored: bool = True,
    spread_by: tuple[str, ...] = (),
    algebraic: bool = False,
) -> Op:
    """An op with the state S [B, HV, K, V], or [B, H, K, V] where no input has HV."""
    repeated = any("HV" in spec.axes for spec in inputs)
    heads = "HV" if repeated else "H"
    state = ("B", heads, "K", "V")
    return Op(
        name=name,
        time_axis="T",
        size_names=("B", "T", "H", *(("HV",) if repeated else ()), "K", "V"),
        inputs=(
            *inputs,
            TensorSpec(name="initial_state", axes=state, kind="state", required=False),
        ),
        outputs=(
            TensorSpec(name="o", axes=("B", "T", heads, "V")),
            TensorSpec(name="final_state", axes=state, kind="state"),
        ),
        state="initial_state",
        forms=(),
        switches=(),
        lower=lower,
        epilogue=epilogue,
        epilogue_pullback=epilogue_pullback,
        lower_pullback=lower_pullback,
        state_in=state_in,
        state_out=state_out,
        group_shape=group_shape,
        constants=constants,
        reads_before=reads_before,
        diagonal=diagonal,
        factored=factored,
        spread_by=spread_by,
        matrix_products=True,
        algebraic=algebraic,
    )
