"""ssd: Mamba-2's scan, a scalar decay for each head, fused with its gates.

    d = softplus(dt + dt_bias) if dt_softplus else dt + dt_bias
    S_t = exp(d_t A) S_{t-1} + d_t B_t x_t^T        S is N x P
    y_t = (S_t^T C_t + D x_t) silu(z_t)

Source: Dao and Gu, "Transformers are SSMs" (2024); layouts as in
mamba_ssm's mamba_chunk_scan_combined. x, z: [B, T, H, P]; dt [B, T, H]; A, D,
dt_bias: [H]; B, C: [B, T, G, N], head j with those of group j // (H / G);
initial_states [B, H, P, N]; outputs y [B, T, H, P] and final_states [B, H, P, N].

In the normal form a group is a batch row and head, K = N, L = P.
"""

from collections.abc import Mapping
from typing import Any

from scancheck.errors import CaseInvalid
from scancheck.ops.heads import (
    per_head,
    per_head_pullback,
    per_key,
    per_key_pullback,
    per_lane,
    per_lane_back,
)
from scancheck.ops.normal_form import (
    Cotangents,
    Lowered,
    Op,
    Tensors,
    TensorSpec,
    gate_cotangent,
)

LANES = ("B", "T", "H", "P")
KEYS = ("B", "T", "G", "N")
HEADS = ("H",)
STATE = ("B", "H", "P", "N")


def _step(tile: Tensors) -> tuple[Any, Any]:
    """The argument of softplus and the step size d, both [B, T, H]."""
    x = tile["dt"]
    if "dt_bias" in tile:
        x = x + tile["dt_bias"][None, None]
    return x, (x.softplus() if tile.get("dt_softplus") else x)


def lower(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
    """w = exp(d A), k = B, v = d x, r = C."""
    heads = tile["x"].shape[2]
    _, d = _step(tile)
    log_w = per_head(d * tile["A"][None, None])
    lowered = Lowered(
        w=log_w.exp(),
        v=per_lane(d[:, :, :, None] * tile["x"]),
        k=per_key(tile["B"], heads),
        r=per_key(tile["C"], heads),
        log_w=log_w,
    )
    return lowered, carry


def _ungated(tile: Tensors, o: Any) -> Any:
    """S^T C + D x, [B, T, H, P]."""
    y = per_lane_back(o, tile["x"].shape[2])
    if "D" in tile:
        y = y + tile["D"][None, None, :, None] * tile["x"]
    return y


def epilogue(tile: Tensors, o: Any) -> Any:
    """(S^T C + D x) silu(z)."""
    y = _ungated(tile, o)
    return y * tile["z"].silu() if "z" in tile else y


def epilogue_pullback(tile: Tensors, o: Any, ybar: Any) -> tuple[Any, dict[str, Any]]:
    """pbar = ybar silu(z); dz = ybar p silu'(z); dD = sum pbar x; dx += pbar D."""
    gradients = {}
    pbar = ybar
    if "z" in tile:
        pbar = ybar * tile["z"].silu()
        gradients["z"] = ybar * _ungated(tile, o) * tile["z"].silu_slope()
    if "D" in tile:
        gradients["D"] = (pbar * tile["x"]).sum((0, 1, 3))
        gradients["x"] = pbar * tile["D"][None, None, :, None]
    return per_lane(pbar), gradients


def lower_pullback(
    tile: Tensors, lowered: Lowered, cotangents: Cotangents
) -> dict[str, Any]:
    """Back through w = exp(d A), v = d x and d = softplus(dt + dt_bias)."""
    heads = tile["x"].shape[2]
    x, d = _step(tile)
    lbar = per_head_pullback(gate_cotangent(lowered, cotangents), heads)
    vbar = per_lane_back(cotangents.v, heads)
    dbar = lbar * tile["A"][None, None] + (vbar * tile["x"]).sum(3)
    xbar = dbar * x.sigmoid() if tile.get("dt_softplus") else dbar
    gradients = {
        "x": vbar * d[:, :, :, None],
        "dt": xbar,
        "A": (lbar * d).sum((0, 1)),
        "B": per_key_pullback(cotangents.k, tile["B"]),
        "C": per_key_pullback(cotangents.r, tile["C"]),
    }
    if "dt_bias" in tile:
        gradients["dt_bias"] = xbar.sum((0, 1))
    return gradients


def state_in(state: Any, sizes: Mapping[str, int]) -> Any:
    """[B, H, P, N] -> S [B H, N, P]."""
    batch, heads, lanes, keys = state.shape
    return state.transpose(0, 1, 3, 2).reshape(batch * heads, keys, lanes)


def state_out(state: Any, sizes: Mapping[str, int]) -> Any:
    """S [B H, N, P] -> [B, H, P, N]."""
    groups, keys, lanes = state.shape
    heads = sizes["H"]
    state = state.reshape(groups // heads, heads, keys, lanes)
    return state.transpose(0, 1, 3, 2)


def group_shape(sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """G, K, L of the normal form; raises CaseInvalid where G does not divide H."""
    heads, groups = sizes["H"], sizes["G"]
    if groups < 1 or heads % groups:
        raise CaseInvalid(f"size G: expected a divisor of H = {heads}; got {groups}")
    return sizes["B"] * heads, sizes["N"], sizes["P"]


SSD = Op(
    name="ssd",
    time_axis="T",
    size_names=("B", "T", "H", "P", "G", "N"),
    inputs=(
        TensorSpec(name="x", axes=LANES),
        TensorSpec(name="dt", axes=("B", "T", "H")),
        TensorSpec(name="A", axes=HEADS, kind="state"),
        TensorSpec(name="B", axes=KEYS),
        TensorSpec(name="C", axes=KEYS),
        TensorSpec(name="D", axes=HEADS, kind="state", required=False),
        TensorSpec(name="z", axes=LANES, required=False),
        TensorSpec(name="dt_bias", axes=HEADS, kind="state", required=False),
        TensorSpec(name="initial_states", axes=STATE, kind="state", required=False),
    ),
    outputs=(
        TensorSpec(name="y", axes=LANES),
        TensorSpec(name="final_states", axes=STATE, kind="state"),
    ),
    state="initial_states",
    forms=(),
    switches=("dt_softplus",),
    lower=lower,
    epilogue=epilogue,
    epilogue_pullback=epilogue_pullback,
    lower_pullback=lower_pullback,
    state_in=state_in,
    state_out=state_out,
    group_shape=group_shape,
    factored=True,
    matrix_products=True,
)
