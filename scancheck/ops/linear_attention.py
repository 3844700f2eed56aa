"""linear_attention: S_t = S_{t-1} + k_t v_t^T; o_t = K^-1/2 S_t^T q_t.

Source: Katharopoulos et al., "Transformers are RNNs" (2020), section 3.4, without the
normaliser and with the feature map applied to q and k before.
q, k: [B, T, H, K]; v [B, T, HV, V]; initial_state [B, HV, K, V]; outputs
o [B, T, HV, V] and final_state [B, HV, K, V].
"""

from typing import Any

from scancheck.ops.heads import (
    QKV,
    op_with_heads,
    same_at_all_times,
    scale_and_no_decay,
    written_and_read,
    written_and_read_pullback,
)
from scancheck.ops.normal_form import Lowered, Tensors


def lower(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
    """w is a constant of each head, here one."""
    w = same_at_all_times(tile["decay"], tile)
    return Lowered(w=w, **written_and_read(tile)), carry


LINEAR_ATTENTION = op_with_heads(
    "linear_attention",
    QKV,
    lower=lower,
    lower_pullback=written_and_read_pullback,
    constants=scale_and_no_decay,
    algebraic=True,
)
