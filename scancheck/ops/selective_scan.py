"""selective_scan: Mamba-1's scan with real A, fused with its gates.

    d = softplus(delta + delta_bias) if delta_softplus else delta + delta_bias
    h_t = exp(d_t A) h_{t-1} + d_t B_t u_t        h is D x N
    y_t = (C_t . h_t + D u_t) silu(z_t)

Source: Gu and Dao, "Mamba" (2023), section 3; layouts as in mamba_ssm's
selective_scan_fn. u, delta, z: [B, D, L]; A [D, N]; B, C time-varying [B, N, L] or
[B, G, N, L], or constant [D, N]; D, delta_bias [D]; initial_state [B, D, N]; outputs
y [B, D, L] and last_state [B, D, N].

In the normal form a group is a batch row and B/C group, its lanes are the channels of
that group, K = N.
"""

from collections.abc import Mapping
from typing import Any

from scancheck.ops.normal_form import (
    Cotangents,
    Lowered,
    Op,
    Tensors,
    TensorSpec,
    gate_cotangent,
)

CHANNELS = ("B", "D", "L")
STATE = ("B", "D", "N")
KEY_VARIANTS = ((("B", "G", "N", "L"), "storage"), (("D", "N"), "state"))


def _groups(tile: Tensors) -> int:
    """Number of B/C groups per batch row."""
    for name in ("B", "C"):
        if len(tile[name].shape) == 4:
            return int(tile[name].shape[1])
    return 1


def _lanes(x: Any, groups: int) -> Any:
    """[B, D, T] -> [B G, T, D / G]."""
    batch, channels, steps = x.shape
    x = x.reshape(batch, groups, channels // groups, steps).transpose(0, 1, 3, 2)
    return x.reshape(batch * groups, steps, channels // groups)


def _channels(x: Any, groups: int) -> Any:
    """[B G, T, D / G] -> [B, D, T]."""
    rows, steps, lanes = x.shape
    x = x.reshape(rows // groups, groups, steps, lanes).transpose(0, 1, 3, 2)
    return x.reshape(rows // groups, groups * lanes, steps)


def _keys(x: Any, batch: int, groups: int) -> Any:
    """B or C in normal form: [B G, T, N, 1], or [B G, 1, N, D / G] when constant."""
    match len(x.shape):
        case 2:
            channels, states = x.shape
            x = x.reshape(1, groups, channels // groups, states).transpose(0, 1, 3, 2)
            x = x[[0] * batch]
            return x.reshape(batch * groups, 1, states, channels // groups)
        case 3:
            x = x.transpose(0, 2, 1)
            x = x[:, None]
            if groups > 1:
                x = x[:, [0] * groups]
            _, _, steps, states = x.shape
            return x.reshape(batch * groups, steps, states, 1)
        case _:
            x = x.transpose(0, 1, 3, 2)
            return x.reshape(batch * groups, x.shape[2], x.shape[3], 1)


def _keys_pullback(kbar: Any, x: Any, batch: int, groups: int) -> Any:
    """The cotangent of B or C from that of `_keys`, time summed when constant."""
    rows, _, states, lanes = kbar.shape
    match len(x.shape):
        case 2:
            kbar = kbar.sum(1).reshape(batch, groups, states, lanes).sum(0)
            return kbar.transpose(0, 2, 1).reshape(groups * lanes, states)
        case 3:
            kbar = kbar.reshape(batch, groups, kbar.shape[1], states)
            return kbar.sum(1).transpose(0, 2, 1)
        case _:
            kbar = kbar.reshape(batch, groups, kbar.shape[1], states)
            return kbar.transpose(0, 1, 3, 2)


def _matrix(x: Any, batch: int, groups: int) -> Any:
    """A [D, N] -> [B G, 1, N, D / G]."""
    return _keys(x, batch, groups)


def _step(tile: Tensors) -> tuple[Any, Any]:
    """The argument of softplus and the step size d, both [B, D, T]."""
    bias = tile["delta_bias"][None, :, None] if "delta_bias" in tile else None
    return _step_of(tile, tile["delta"], bias)


def _step_of(tile: Tensors, delta: Any, bias: Any) -> tuple[Any, Any]:
    """The argument of softplus and d, in the layout of delta and bias."""
    x = delta if bias is None else delta + bias
    return x, (x.softplus() if tile.get("delta_softplus") else x)


def lower(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
    """w = exp(d A), k = B, v = d u, r = C."""
    batch, groups = tile["u"].shape[0], _groups(tile)
    bias = None
    if "delta_bias" in tile:
        bias = _lanes(tile["delta_bias"][None, :, None][[0] * batch], groups)
    _, d = _step_of(tile, _lanes(tile["delta"], groups), bias)
    log_w = d[:, :, None, :] * _matrix(tile["A"], batch, groups)
    lowered = Lowered(
        w=log_w.exp(),
        v=d * _lanes(tile["u"], groups),
        k=_keys(tile["B"], batch, groups),
        r=_keys(tile["C"], batch, groups),
        log_w=log_w,
    )
    return lowered, carry


def _ungated(tile: Tensors, o: Any) -> Any:
    """C . h + D u, [B, D, T]."""
    p = _channels(o, _groups(tile))
    if "D" in tile:
        p = p + tile["D"][None, :, None] * tile["u"]
    return p


def epilogue(tile: Tensors, o: Any) -> Any:
    """(C . h + D u) silu(z)."""
    p = _ungated(tile, o)
    return p * tile["z"].silu() if "z" in tile else p


def epilogue_pullback(tile: Tensors, o: Any, ybar: Any) -> tuple[Any, dict[str, Any]]:
    """pbar = ybar silu(z); dz = ybar p silu'(z); dD = sum pbar u; du += pbar D."""
    gradients = {}
    pbar = ybar
    if "z" in tile:
        pbar = ybar * tile["z"].silu()
        gradients["z"] = ybar * _ungated(tile, o) * tile["z"].silu_slope()
    if "D" in tile:
        gradients["D"] = (pbar * tile["u"]).sum((0, 2))
        gradients["u"] = pbar * tile["D"][None, :, None]
    return _lanes(pbar, _groups(tile)), gradients


def lower_pullback(
    tile: Tensors, lowered: Lowered, cotangents: Cotangents
) -> dict[str, Any]:
    """Back through w = exp(d A), v = d u and d = softplus(delta + bias)."""
    batch, groups = tile["u"].shape[0], _groups(tile)
    x, d = _step(tile)
    lbar = gate_cotangent(lowered, cotangents)
    matrix = _matrix(tile["A"], batch, groups)
    vbar = _channels(cotangents.v, groups)
    dbar = _channels((lbar * matrix).sum(2), groups) + vbar * tile["u"]
    abar = (lbar * _lanes(d, groups)[:, :, None, :]).sum(1)
    states, lanes = abar.shape[1], abar.shape[2]
    abar = abar.reshape(batch, groups, states, lanes).sum(0)
    xbar = dbar * x.sigmoid() if tile.get("delta_softplus") else dbar
    gradients = {
        "u": vbar * d,
        "delta": xbar,
        "A": abar.transpose(0, 2, 1).reshape(groups * lanes, states),
        "B": _keys_pullback(cotangents.k, tile["B"], batch, groups),
        "C": _keys_pullback(cotangents.r, tile["C"], batch, groups),
    }
    if "delta_bias" in tile:
        gradients["delta_bias"] = xbar.sum((0, 2))
    return gradients


def state_in(state: Any, sizes: Mapping[str, int]) -> Any:
    """[B, D, N] -> S [B G, N, D / G]."""
    batch, channels, states = state.shape
    groups = sizes.get("G", 1)
    state = state.reshape(batch, groups, channels // groups, states)
    state = state.transpose(0, 1, 3, 2)
    return state.reshape(batch * groups, states, channels // groups)


def state_out(state: Any, sizes: Mapping[str, int]) -> Any:
    """S [B G, N, D / G] -> [B, D, N]."""
    rows, states, lanes = state.shape
    groups = sizes.get("G", 1)
    state = state.reshape(rows // groups, groups, states, lanes).transpose(0, 1, 3, 2)
    return state.reshape(rows // groups, groups * lanes, states)


def group_shape(sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """G, K, L of the normal form."""
    groups = sizes.get("G", 1)
    return sizes["B"] * groups, sizes["N"], sizes["D"] // groups


SELECTIVE_SCAN = Op(
    name="selective_scan",
    time_axis="L",
    size_names=("B", "D", "L", "N", "G"),
    inputs=(
        TensorSpec(name="u", axes=CHANNELS),
        TensorSpec(name="delta", axes=CHANNELS),
        TensorSpec(name="A", axes=("D", "N"), kind="state"),
        TensorSpec(name="B", axes=("B", "N", "L"), variants=KEY_VARIANTS),
        TensorSpec(name="C", axes=("B", "N", "L"), variants=KEY_VARIANTS),
        TensorSpec(name="D", axes=("D",), kind="state", required=False),
        TensorSpec(name="z", axes=CHANNELS, required=False),
        TensorSpec(name="delta_bias", axes=("D",), kind="state", required=False),
        TensorSpec(name="initial_state", axes=STATE, kind="state", required=False),
    ),
    outputs=(
        TensorSpec(name="y", axes=CHANNELS),
        TensorSpec(name="last_state", axes=STATE, kind="state"),
    ),
    state="initial_state",
    forms=(),
    switches=("delta_softplus",),
    lower=lower,
    epilogue=epilogue,
    epilogue_pullback=epilogue_pullback,
    lower_pullback=lower_pullback,
    state_in=state_in,
    state_out=state_out,
    group_shape=group_shape,
)
