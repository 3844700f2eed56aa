"""retention: S_t = (1 - 2^(-5-j)) S_{t-1} + k_t v_t^T in value head j.

Source: Sun et al., "Retentive Network" (2023), the recurrent form and the decays of
its heads, j counted from 0. The decay is exact in fp64 up to head 48; its log, rounded
to fp64, is for kernels that form decays over many steps from logs. Tensors and the
read-out K^-1/2 S_t^T q_t are those of linear_attention.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scancheck.ops.heads import (
    QKV,
    op_with_heads,
    same_at_all_times,
    scale,
    value_heads,
    written_and_read,
)
from scancheck.ops.heads import written_and_read_pullback as lower_pullback
from scancheck.ops.normal_form import FloatArray, Lowered, Tensors


def constants(sizes: Mapping[str, int]) -> dict[str, FloatArray]:
    """The scale [1], and the decay of each value head and its log [HV]."""
    heads = np.arange(value_heads(sizes), dtype=np.float64)
    lost = np.exp2(-5.0 - heads)
    return scale(sizes) | {"decay": 1.0 - lost, "log_decay": np.log1p(-lost)}


def lower(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
    """w is the decay itself, so that it stays exact."""
    w, log_w = (same_at_all_times(tile[name], tile) for name in ("decay", "log_decay"))
    return Lowered(w=w, log_w=log_w, **written_and_read(tile)), carry


RETENTION = op_with_heads(
    "retention",
    QKV,
    lower=lower,
    lower_pullback=lower_pullback,
    constants=constants,
    algebraic=True,
)
