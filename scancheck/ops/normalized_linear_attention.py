"""normalized_linear_attention: linear attention divided by its running sum of keys.

    S_t = S_{t-1} + k_t v_t^T;  z_t = z_{t-1} + k_t
    o_t = K^-1/2 S_t^T q_t / (K^-1/2 z_t . q_t + 1e-10)

Source: Katharopoulos et al., "Transformers are RNNs" (2020), equation 12, with the
feature map applied to q and k before and the floor of flash-linear-attention.
q, k: [B, T, H, K]; v [B, T, HV, V]; initial_state [B, HV, K, V]; initial_key_sum
[B, HV, K]; outputs o [B, T, HV, V], final_state [B, HV, K, V] and final_key_sum
[B, HV, K]. Every value head has a key sum of its own, for its first one may be given.

z is one more lane of S, whose value is always one: L = V + 1.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from scancheck.ops.heads import (
    QKV,
    group_shape,
    op_with_heads,
    per_lane,
    per_lane_back,
    same_at_all_times,
    scale_and_no_decay,
    state_in,
    state_out,
    written_and_read,
    written_and_read_pullback,
)
from scancheck.ops.normal_form import (
    Cotangents,
    FloatArray,
    Lowered,
    Tensors,
    TensorSpec,
)

FLOOR = 1e-10  # added to the denominator


def constants(sizes: Mapping[str, int]) -> dict[str, FloatArray]:
    """The scale [1], a decay of one for each value head [HV], and the floor [1]."""
    return scale_and_no_decay(sizes) | {"floor": np.full(1, FLOOR)}


def lower(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
    """w = 1; behind the values stands a one, which adds up the keys."""
    w = same_at_all_times(tile["decay"], tile)
    fields = written_and_read(tile)
    ones = w.reshape(*w.shape[:3])
    return Lowered(w=w, **fields | {"v": fields["v"].joined(ones, 2)}), carry


def lower_pullback(
    tile: Tensors, lowered: Lowered, cotangents: Cotangents
) -> dict[str, Any]:
    """As without a normaliser: the ones have no gradient."""
    of_values = replace(cotangents, v=values_of(cotangents.v))
    return written_and_read_pullback(tile, lowered, of_values)


def values_of(x: Any) -> Any:
    """All lanes but the last, of [G, T, L]."""
    return x[:, :, slice(x.shape[2] - 1)]


def normaliser_of(x: Any) -> Any:
    """The last lane of [G, T, L], [G, T, 1]."""
    return x[:, :, slice(x.shape[2] - 1, None)]


def _share(tile: Tensors, o: Any) -> Any:
    """1 / (z . q + floor), [G, T, 1]."""
    return (normaliser_of(o) + tile["floor"]).reciprocal()


def epilogue(tile: Tensors, o: Any) -> Any:
    """The values read, divided by the normaliser, [B, T, HV, V]."""
    return per_lane_back(values_of(o) * _share(tile, o), tile["v"].shape[2])


def epilogue_pullback(tile: Tensors, o: Any, ybar: Any) -> tuple[Any, dict[str, Any]]:
    """With y = n / d: nbar = ybar / d, dbar = -(ybar . y) / d."""
    ybar, share = per_lane(ybar), _share(tile, o)
    of_values = ybar * share
    along = (of_values * values_of(o)).sum(2)[:, :, None]
    return of_values.joined(-(along * share), 2), {}


def both_in(state: Any, key_sum: Any, sizes: Mapping[str, int]) -> Any:
    """[B, HV, K, V] and [B, HV, K] -> S [B HV, K, V + 1]."""
    groups, keys, _ = group_shape(sizes)
    return state_in(state, sizes).joined(key_sum.reshape(groups, keys, 1), 2)


def both_out(state: Any, sizes: Mapping[str, int]) -> tuple[Any, Any]:
    """S [B HV, K, V + 1] -> [B, HV, K, V] and [B, HV, K]."""
    key_sum = state_out(normaliser_of(state), sizes)
    return state_out(values_of(state), sizes), key_sum[:, :, :, 0]


def with_normaliser(sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """G, K, L = V + 1 of the normal form."""
    groups, keys, lanes = group_shape(sizes)
    return groups, keys, lanes + 1


_LINEAR = op_with_heads(
    "normalized_linear_attention",
    QKV,
    lower=lower,
    lower_pullback=lower_pullback,
    constants=constants,
    epilogue=epilogue,
    epilogue_pullback=epilogue_pullback,
)
KEY_SUM = ("B", "HV", "K")
NORMALIZED_LINEAR_ATTENTION = replace(
    _LINEAR,
    inputs=(
        *_LINEAR.inputs,
        TensorSpec(name="initial_key_sum", axes=KEY_SUM, kind="state", required=False),
    ),
    outputs=(
        *_LINEAR.outputs,
        TensorSpec(name="final_key_sum", axes=KEY_SUM, kind="state"),
    ),
    further_state=("initial_key_sum",),
    normalisers=1,
    state_in=both_in,
    state_out=both_out,
    group_shape=with_normaliser,
)
