"""lightning_attention: S_t = exp(-8 j / HV) S_{t-1} + k_t v_t^T in value head j.

Source: Qin et al., "Lightning Attention-2" (2024); the decay rates are those that
flash-linear-attention has for layer 0. The log of the decay, rounded to fp64,
is the constant. Tensors and the read-out are those of linear_attention.
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
    written_and_read_pullback,
)
from scancheck.ops.normal_form import FloatArray, Lowered, Tensors


def constants(sizes: Mapping[str, int]) -> dict[str, FloatArray]:
    """The scale [1] and the log decay of each value head [HV]."""
    heads = value_heads(sizes)
    log_decay = -(8.0 / heads) * np.arange(heads, dtype=np.float64)
    return scale(sizes) | {"log_decay": log_decay}


def lower(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
    """w = exp(log decay)."""
    log_w = same_at_all_times(tile["log_decay"], tile)
    return Lowered(w=log_w.exp(), log_w=log_w, **written_and_read(tile)), carry


LIGHTNING_ATTENTION = op_with_heads(
    "lightning_attention",
    QKV,
    lower=lower,
    lower_pullback=written_and_read_pullback,
    constants=constants,
)
