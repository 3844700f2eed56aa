"""A recurrence of one's own, judged from this file alone.

    scancheck verify examples/own_recurrence.py:step_form \
        --op examples/own_recurrence.py:RULE --contract structure=sequential --gradients

A gated delta rule that writes with strength sigmoid(b), b an input of its own:

    S' = exp(g) S,   S = S' + sigmoid(b) k (v - S'^T k)^T,   o = K**-0.5 S^T q
"""

import torch
from torch import Tensor

from scancheck import custom_op
from scancheck.ops.heads import per_head, per_key, per_lane
from scancheck.ops.normal_form import Lowered


def lower(x, carry):
    """S = (w + p q^T) S + k v^T, read by r; everything else follows from this."""
    heads = x["v"].shape[2]
    k, strength = per_key(x["k"], heads), per_head(x["b"]).sigmoid()
    log_w = per_head(x["g"])
    w = log_w.exp()
    lowered = Lowered(
        w=w,
        log_w=log_w,
        p=-(strength * k),
        q=w * k,
        k=strength * k,
        v=per_lane(x["v"]),
        r=per_key(x["q"] * x["scale"], heads),
        erases_decayed=True,
    )
    return lowered, carry


RULE = custom_op(
    "sigmoid_delta_rule",
    lower,
    inputs={
        "q": "B T H K",
        "k": "B T H K",
        "v": "B T HV V",
        "g": "B T HV",
        "b": "B T HV",
    },
    like="gated_delta_rule",  # its recipes draw q, k, v and g
    ranges={"b": (-3.0, 3.0)},
    rank_one=True,
)


def step_form(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    b: Tensor,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The kernel under test: here a loop over tokens in torch."""
    heads, dtype = v.shape[2], v.dtype
    wide = torch.promote_types(dtype, torch.float32)
    q, k, v, g, b = (x.to(wide) for x in (q, k, v, g, b))
    q, k = (x.repeat_interleave(heads // x.shape[2], 2) for x in (q, k))
    state = v.new_zeros(v.shape[0], heads, k.shape[3], v.shape[3])
    if initial_state is not None:
        state = state + initial_state
    rows = []
    for t in range(v.shape[1]):
        state = torch.exp(g[:, t, :, None, None]) * state
        error = v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        error = torch.sigmoid(b[:, t, :, None]) * error
        state = state + k[:, t, :, :, None] * error[:, :, None]
        rows.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * k.shape[3] ** -0.5)
    o = torch.stack(rows, 1) if rows else v * 1.0
    return o.to(dtype), state


def without_decay_of_what_is_erased(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    b: Tensor,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same with a fault: what is erased is read before the state has decayed."""
    heads = v.shape[2]
    q, k = (x.repeat_interleave(heads // x.shape[2], 2) for x in (q, k))
    state = torch.zeros(v.shape[0], heads, k.shape[3], v.shape[3])
    state = state if initial_state is None else state + initial_state
    rows = []
    for t in range(v.shape[1]):
        error = v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        error = torch.sigmoid(b[:, t, :, None]) * error
        state = torch.exp(g[:, t, :, None, None]) * state
        state = state + k[:, t, :, :, None] * error[:, :, None]
        rows.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * k.shape[3] ** -0.5)
    return torch.stack(rows, 1) if rows else v * 1.0, state
