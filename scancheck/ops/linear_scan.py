"""linear_scan: h_t = a_t h_{t-1} + b_t per channel, with a given or a = exp(g).

HGRN, RG-LRU, minGRU, S5 and every associative_scan over affine maps are this op.
Tensors a or g, b: [B, T, D]; initial_state [B, D]; outputs h [B, T, D] and
final_state [B, D].
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

SEQUENCE = ("B", "T", "D")
STATE = ("B", "D")


def lower(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
    """Groups are batch rows, lanes are channels, K = 1."""
    if "g" in tile:
        log_w = tile["g"][:, :, None, :]
        return Lowered(w=log_w.exp(), v=tile["b"], log_w=log_w), carry
    return Lowered(w=tile["a"][:, :, None, :], v=tile["b"]), carry


def epilogue(tile: Tensors, o: Any) -> Any:
    """h is the state itself."""
    return o


def epilogue_pullback(tile: Tensors, o: Any, ybar: Any) -> tuple[Any, dict[str, Any]]:
    """The cotangent of h is the cotangent of the state."""
    return ybar, {}


def lower_pullback(
    tile: Tensors, lowered: Lowered, cotangents: Cotangents
) -> dict[str, Any]:
    """da = wbar; dg is the cotangent of log a (numerics 2.9); db = vbar."""
    if "g" in tile:
        gbar = gate_cotangent(lowered, cotangents)
        return {"g": gbar[:, :, 0, :], "b": cotangents.v}
    return {"a": cotangents.w[:, :, 0, :], "b": cotangents.v}


def state_in(state: Any, sizes: Mapping[str, int]) -> Any:
    """[B, D] -> S [G, 1, L]."""
    return state[:, None, :]


def state_out(state: Any, sizes: Mapping[str, int]) -> Any:
    """S [G, 1, L] -> [B, D]."""
    return state[:, 0, :]


def group_shape(sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """G, K, L of the normal form."""
    return sizes["B"], 1, sizes["D"]


LINEAR_SCAN = Op(
    name="linear_scan",
    time_axis="T",
    size_names=("B", "T", "D"),
    inputs=(
        TensorSpec(name="a", axes=SEQUENCE, required=False),
        TensorSpec(name="g", axes=SEQUENCE, required=False),
        TensorSpec(name="b", axes=SEQUENCE),
        TensorSpec(name="initial_state", axes=STATE, kind="state", required=False),
    ),
    outputs=(
        TensorSpec(name="h", axes=SEQUENCE),
        TensorSpec(name="final_state", axes=STATE, kind="state"),
    ),
    state="initial_state",
    forms=(frozenset({"a"}), frozenset({"g"})),
    switches=(),
    lower=lower,
    epilogue=epilogue,
    epilogue_pullback=epilogue_pullback,
    lower_pullback=lower_pullback,
    state_in=state_in,
    state_out=state_out,
    group_shape=group_shape,
)
