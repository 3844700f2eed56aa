"""The definitions of the ops in step form, as loops that autograd can follow.

With `terms` each sum has its terms' magnitudes instead: of inputs that are magnitudes,
outputs and gradients are then what errors are relative to.
"""

from collections.abc import Callable

import torch
from torch.nn.functional import silu, softplus

Tensors = dict[str, torch.Tensor]
Pair = tuple[torch.Tensor, torch.Tensor]


def heads_of(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, T, H, K] over the value heads that share each, [B, T, heads, K]."""
    return x.repeat_interleave(heads // x.shape[2], 2)


def column(x: torch.Tensor) -> torch.Tensor:
    """[..., K] as a column of a state, [..., K, 1]."""
    return x[..., None]


def row(x: torch.Tensor) -> torch.Tensor:
    """[..., V] as a row of a state, [..., 1, V]."""
    return x[..., None, :]


def attention(op: str, t: Tensors, terms: bool) -> Pair:
    """Every op of q, k and v: a decay, perhaps the delta rule, a scaled read-out."""
    heads, width = t["v"].shape[2], t["q"].shape[3]
    q, k, v = heads_of(t["q"], heads), heads_of(t["k"], heads), t["v"]
    head = torch.arange(heads, dtype=torch.float64)
    constant = {
        "retention": 1 - 2 ** (-5 - head),
        "lightning_attention": torch.exp(-8 * head / heads),
    }.get(op, torch.ones(heads, dtype=torch.float64))
    state = t["initial_state"]
    outputs = []
    for i in range(v.shape[1]):
        if op in ("gla", "kda"):
            state = column(t["gk" if op == "gla" else "g"][:, i].exp()) * state
        elif "g" in t:
            state = t["g"][:, i, :, None, None].exp() * state
        else:
            state = constant[:, None, None] * state
        if "gv" in t:
            state = state * row(t["gv"][:, i].exp())
        value = v[:, i]
        if "beta" in t:
            found = (state * column(k[:, i])).sum(2)
            value = t["beta"][:, i, :, None] * (value + found * (1 if terms else -1))
        state = state + column(k[:, i]) * row(value)
        outputs.append(width**-0.5 * (state * column(q[:, i])).sum(2))
    return stacked(outputs, v), state


def rwkv6(op: str, t: Tensors, terms: bool) -> Pair:
    """Each token reads the state before it, with a bonus for itself."""
    state = t["initial_state"]
    outputs = []
    for i in range(t["v"].shape[1]):
        drive = column(t["k"][:, i]) * row(t["v"][:, i])
        read = state + column(t["u"]) * drive
        read = (read * column(t["r"][:, i])).sum(2)
        outputs.append(t["r"].shape[3] ** -0.5 * read)
        state = column(t["w"][:, i].exp()) * state + drive
    return stacked(outputs, t["v"]), state


def rwkv7(op: str, t: Tensors, terms: bool) -> Pair:
    """A rank-one term on the undecayed state."""
    state = t["initial_state"]
    outputs = []
    for i in range(t["v"].shape[1]):
        seen = (column(t["a"][:, i]) * state).sum(2)
        state = (
            column(t["w"][:, i].exp()) * state
            + column(t["b"][:, i]) * row(seen)
            + column(t["k"][:, i]) * row(t["v"][:, i])
        )
        outputs.append((column(t["r"][:, i]) * state).sum(2))
    return stacked(outputs, t["v"]), state


def ssd(op: str, t: Tensors, terms: bool) -> Pair:
    """Mamba-2; `op` says whether the step size goes through softplus."""
    x, heads = t["x"], t["x"].shape[2]
    keys, reads = heads_of(t["B"], heads), heads_of(t["C"], heads)
    step = t["dt"] + t["dt_bias"] if "dt_bias" in t else t["dt"]
    if op == "ssd_of_softplus":
        step = softplus(step, threshold=1e9)
    log_decay = step * t["A"]
    decay = torch.exp(-log_decay if terms else log_decay)
    if terms:  # the same decay, with a gradient of magnitudes
        decay = decay.detach() * torch.exp(log_decay - log_decay.detach())
    state = t["initial_states"]
    outputs = []
    for i in range(x.shape[1]):
        drive = column(step[:, i, :, None] * x[:, i]) * row(keys[:, i])
        state = decay[:, i, :, None, None] * state + drive
        outputs.append((state * row(reads[:, i])).sum(3))
    y = stacked(outputs, x)
    if "D" in t:
        y = y + t["D"][:, None] * x
    if "z" in t:
        y = y * silu(t["z"])
    return y, state


def stacked(outputs: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """[B, T, ...] from one output a token."""
    return torch.stack(outputs, 1) if outputs else like


def reference(op: str) -> Callable[[str, Tensors, bool], Pair]:
    """The definition of an op."""
    others = {"rwkv6": rwkv6, "rwkv7": rwkv7, "ssd": ssd, "ssd_of_softplus": ssd}
    return others.get(op, attention)
