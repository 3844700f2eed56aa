"""retention: S_t = (1 - 2^(-5-j)) S_{t-1} + k_t v_t^T in value head j.

Source: Sun et al., "Retentive Network" (2023), the recurrent form and the decays of
its heads, j counted from 0. The decay is exact in fp64 up to head 48. Tensors and the
read-out K^-1/2 S_t^T q_t are those of linear_attention.
"""

from collections.abc import Mapping

import numpy as np

from scancheck.ops.heads import QKV, op_with_heads, scale, value_heads
from scancheck.ops.heads import written_and_read_pullback as lower_pullback
from scancheck.ops.linear_attention import lower
from scancheck.ops.normal_form import FloatArray


def constants(sizes: Mapping[str, int]) -> dict[str, FloatArray]:
    """The scale [1] and the decay of each value head [HV]."""
    heads = np.arange(value_heads(sizes), dtype=np.float64)
    return scale(sizes) | {"decay": 1.0 - np.exp2(-5.0 - heads)}


RETENTION = op_with_heads(
    "retention",
    QKV,
    lower=lower,
    lower_pullback=lower_pullback,
    constants=constants,
    algebraic=True,
)
