"""Ops of q, k and v token by token in torch, in parts that a planted bug may replace.

    D_t = w_t S_{t-1}        S_t = D_t + k_t x_t^T        o_t = K**-0.5 S_t^T q_t

with x_t = v_t, or the delta rule's beta_t (v_t - D_t^T k_t) where there is a beta, and
w_t = exp(g_t), or one. q, k [B, T, H, K]; v [B, T, HV, V]; beta [B, T, HV]; g the same,
or [B, T, HV, K]; initial_state [B, HV, K, V]. Computation is in fp32, or in fp64 for
fp64 tensors. `attention` of `StepForm()` is the control, without a fault.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from scancheck.kernels.faulty.calling_form import Given, widened


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What one token does to the state [B, HV, K, V]."""

    k: Tensor  # [B, HV, K]
    v: Tensor  # [B, HV, V]
    decay: Tensor | None  # [B, HV, K or 1, 1]
    beta: Tensor | None  # [B, HV, 1]


def outer(k: Tensor, value: Tensor) -> Tensor:
    """k value^T, [B, HV, K, V]."""
    return k[..., :, None] * value[..., None, :]


def read(state: Tensor, k: Tensor) -> Tensor:
    """S^T k, [B, HV, V]."""
    return (state * k[..., :, None]).sum(-2)


def decayed(token: Token, state: Tensor) -> Tensor:
    """w S, or S without a decay."""
    return state if token.decay is None else token.decay * state


def value(token: Token, state: Tensor) -> Tensor:
    """What is written along k: v, or its error against a state times beta."""
    if token.beta is None:
        return token.v
    return token.beta * (token.v - read(state, token.k))


def updated(token: Token, state: Tensor) -> Tensor:
    """S_t from S_{t-1}."""
    kept = decayed(token, state)
    return kept + outer(token.k, value(token, kept))


def shared_by_neighbours(x: Tensor, heads: int) -> Tensor:
    """[B, T, H, K] -> [B, T, heads, K]: head j has that of group j // (heads / H)."""
    return x.repeat_interleave(heads // x.shape[2], 2)


def after(before_update: Tensor, after_update: Tensor) -> Tensor:
    """The state that a token reads."""
    return after_update


def unchanged(state: Tensor) -> Tensor:
    """The final state as it is handed out."""
    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class StepForm:
    """The parts of a call; the defaults are right, a planted bug replaces one."""

    spread: Callable[[Tensor, int], Tensor] = shared_by_neighbours
    update: Callable[[Token, Tensor], Tensor] = updated
    read_from: Callable[[Tensor, Tensor], Tensor] = after
    final: Callable[[Tensor], Tensor] = unchanged


FORM = StepForm()


def attention(form: StepForm, given: Given) -> tuple[Tensor, Tensor]:
    """o [B, T, HV, V] in the format of v, and the final state."""
    v = widened(given["v"])
    batch, steps, heads, lanes = v.shape
    q, k = (form.spread(widened(given[name]), heads) for name in ("q", "k"))
    keys = q.shape[3]
    state = given.get("initial_state")
    if state is None:
        state = v.new_zeros(batch, heads, keys, lanes)
    outputs = []
    for t in range(steps):
        token = Token(
            k=k[:, t], v=v[:, t], decay=_decay(given, t), beta=_beta(given, t)
        )
        new = form.update(token, state)
        outputs.append(read(form.read_from(state, new), q[:, t]) * keys**-0.5)
        state = new
    o = torch.stack(outputs, 1) if outputs else v
    # Without a token the state is the caller's own tensor.
    return o.to(given["v"].dtype), form.final(state if outputs else state.clone())


def _decay(given: Given, t: int) -> Tensor | None:
    if "g" not in given:
        return None
    decay = torch.exp(widened(given["g"])[:, t])
    return decay[..., None] if decay.ndim == 3 else decay[..., None, None]


def _beta(given: Given, t: int) -> Tensor | None:
    return widened(given["beta"])[:, t, :, None] if "beta" in given else None
