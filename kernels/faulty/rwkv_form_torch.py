"""RWKV-6 and RWKV-7 token by token in torch, in parts that a planted bug may replace.

    rwkv6:  o_t = K**-0.5 (S_{t-1} + diag(u) k_t v_t^T)^T r_t
            S_t = diag(exp w_t) S_{t-1} + k_t v_t^T
    rwkv7:  S_t = diag(exp w_t) S_{t-1} + b_t (a_t^T S_{t-1}) + k_t v_t^T
            o_t = S_t^T r_t

Tensors are those of the ops, [B, T, H, ...] with the state [B, H, K, V]. Computation is
in fp32, or in fp64 for fp64 tensors. `rwkv6` and `rwkv7` of `RwkvForm()` are controls.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from scancheck.kernels.faulty.calling_form import Given, widened
from scancheck.kernels.faulty.step_form_torch import outer, read


def undecayed(state: Tensor, decayed: Tensor) -> Tensor:
    """The state that a_t is read against."""
    return state


def boosted(state: Tensor, bonus: Tensor, update: Tensor) -> Tensor:
    """What rwkv6 reads: the state before the update, and the token's own part."""
    return state + bonus * update


@dataclass(frozen=True, slots=True, kw_only=True)
class RwkvForm:
    """The parts of a call; the defaults are right, a planted bug replaces one."""

    seen_from: Callable[[Tensor, Tensor], Tensor] = undecayed
    read_from: Callable[[Tensor, Tensor, Tensor], Tensor] = boosted


FORM = RwkvForm()


def rwkv6(form: RwkvForm, given: Given) -> tuple[Tensor, Tensor]:
    """o [B, T, H, V] in the format of v, and the final state."""
    r, k, v, w, u = (widened(given[name]) for name in ("r", "k", "v", "w", "u"))
    state, outputs = _begin(given, k, v), []
    for t in range(v.shape[1]):
        update = outer(k[:, t], v[:, t])
        seen = form.read_from(state, u[None, :, :, None], update)
        outputs.append(read(seen, r[:, t]) * k.shape[3] ** -0.5)
        state = torch.exp(w[:, t, :, :, None]) * state + update
    return _ended(given, v, outputs), state


def rwkv7(form: RwkvForm, given: Given) -> tuple[Tensor, Tensor]:
    """o [B, T, H, V] in the format of v, and the final state."""
    r, w, k, v, a, b = (widened(given[name]) for name in ("r", "w", "k", "v", "a", "b"))
    state, outputs = _begin(given, k, v), []
    for t in range(v.shape[1]):
        decayed = torch.exp(w[:, t, :, :, None]) * state
        seen = read(form.seen_from(state, decayed), a[:, t])
        state = decayed + outer(b[:, t], seen) + outer(k[:, t], v[:, t])
        outputs.append(read(state, r[:, t]))
    return _ended(given, v, outputs), state


def _begin(given: Given, k: Tensor, v: Tensor) -> Tensor:
    """The first state, a tensor of its own."""
    state = given.get("initial_state")
    shape = v.shape[0], v.shape[2], k.shape[3], v.shape[3]
    return v.new_zeros(shape) if state is None else state * 1.0


def _ended(given: Given, v: Tensor, outputs: list[Tensor]) -> Tensor:
    o = torch.stack(outputs, 1) if outputs else v
    return o.to(given["v"].dtype)
