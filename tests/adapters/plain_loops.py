"""Recurrences as loops over tokens in float64, with autograd as their adjoint.

Written from the definitions alone, to decide between a kernel and the tool: nothing
here is from scancheck.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, silu, softplus

SHARED = ("linear_attention", "simple_gla", "retention", "lightning_attention")
SHARED += ("delta_rule", "gated_delta_rule", "kda", "normalized_linear_attention")
OUTPUTS = {
    "linear_scan": ("h", "final_state"),
    "selective_scan": ("y", "last_state"),
    "ssd": ("y", "final_states"),
    "normalized_linear_attention": ("o", "final_state", "final_key_sum"),
    "mlstm": ("h", "final_state", "final_normalizer", "final_max"),
}
SOFTPLUS = {"selective_scan": "delta_softplus", "ssd": "dt_softplus"}  # switches
FLOOR = 1e-10  # of flash-linear-attention's normaliser
MLSTM_FLOOR = 1e-6  # mlstm_kernels' own, beside the one of Beck et al.


def loop(
    op: str, x: dict[str, Tensor], switches: dict[str, bool] | None = None
) -> dict[str, Tensor]:
    """Outputs by name of float64 tensors in the op's layout."""
    found: tuple[Tensor, ...]
    if op == "linear_scan":
        found = linear_scan(x)
    elif op == "normalized_linear_attention":
        found = normalized(x)
    elif op == "mlstm":
        found = mlstm(x)
    elif op in SOFTPLUS:
        scan = selective_scan if op == "selective_scan" else ssd
        found = scan(x, (switches or {}).get(SOFTPLUS[op], False))
    elif op == "gated_delta_product":
        found = delta_product(x)
    else:
        found = with_heads(op, x)
    return dict(zip(OUTPUTS.get(op, ("o", "final_state")), found, strict=True))


def softplused(op: str, x: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """All outputs, with softplus where the op has it."""
    return tuple(loop(op, x, dict.fromkeys(SOFTPLUS.values(), True)).values())


def linear_scan(x: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """h_t = a_t h_{t-1} + b_t, [B, T, D]."""
    b = x["b"]
    decay = x["a"] if "a" in x else x["g"].exp()
    state = x.get("initial_state", torch.zeros_like(b[:, 0]))
    outputs = []
    for t in range(b.shape[1]):
        state = decay[:, t] * state + b[:, t]
        outputs.append(state)
    return torch.stack(outputs, 1), state


def selective_scan(x: dict[str, Tensor], soft: bool) -> tuple[Tensor, Tensor]:
    """h = exp(delta A) h + delta B u; y = (C h + D u) silu(z), [B, D, L].

    From zero, or an initial_state of a form that takes one. B and C are [B, N, L],
    [B, G, N, L] for groups of channels, or constant [D, N].
    """
    u, delta = x["u"], x["delta"]
    channels = u.shape[1]
    if "delta_bias" in x:
        delta = delta + x["delta_bias"][:, None]
    delta = softplus(delta) if soft else delta

    def at(name: str, t: int) -> Tensor:
        keys = x[name]
        if keys.ndim == 2:
            return keys
        if keys.ndim == 3:
            return keys[:, None, :, t]
        return keys[..., t].repeat_interleave(channels // keys.shape[1], 1)

    state = x.get("initial_state", u.new_zeros(*u.shape[:2], x["A"].shape[1]))
    outputs = []
    for t in range(u.shape[2]):
        step = delta[:, :, t, None]
        drive = step * u[:, :, t, None] * at("B", t)
        state = (step * x["A"]).exp() * state + drive
        outputs.append((state * at("C", t)).sum(2))
    y = torch.stack(outputs, 2)
    if "D" in x:
        y = y + x["D"][:, None] * u
    return (y * silu(x["z"]) if "z" in x else y), state


def ssd(x: dict[str, Tensor], soft: bool) -> tuple[Tensor, Tensor]:
    """S = exp(d A) S + d x B^T (P x N); y = (S C + D x) silu(z), [B, T, H, P].

    B and C are [B, T, G, N], neighbouring heads sharing one.
    """
    values, d = x["x"], x["dt"]
    if "dt_bias" in x:
        d = d + x["dt_bias"]
    d = softplus(d) if soft else d
    batch, steps, heads, width = values.shape
    shared = heads // x["B"].shape[2]
    keys, queries = (x[name].repeat_interleave(shared, 2) for name in ("B", "C"))
    state = x.get(
        "initial_states", values.new_zeros(batch, heads, width, keys.shape[3])
    )
    outputs = []
    for t in range(steps):
        decay = (d[:, t] * x["A"]).exp()[..., None, None]
        write = d[:, t, :, None] * values[:, t]
        state = decay * state + write[..., None] * keys[:, t, :, None]
        outputs.append(torch.einsum("bhpn,bhn->bhp", state, queries[:, t]))
    y = torch.stack(outputs, 1)
    if "D" in x:
        y = y + x["D"][:, None] * values
    return (y * silu(x["z"]) if "z" in x else y), state


def delta_product(x: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Siems et al. 2025: one decay of the state, then M steps of the delta rule."""
    keys, values = x["k"], x["v"]  # [B, T, M, H, K] and [B, T, M, H, V]
    batch, steps, substeps, heads, width = keys.shape
    state = x.get(
        "initial_state", values.new_zeros(batch, heads, width, values.shape[4])
    )
    outputs = []
    for t in range(steps):
        state = x["g"][:, t].exp()[..., None, None] * state
        for j in range(substeps):
            k = keys[:, t, j]
            missing = values[:, t, j] - torch.einsum("bhkv,bhk->bhv", state, k)
            write = x["beta"][:, t, j, :, None] * missing
            state = state + k[..., None] * write[..., None, :]
        read = width**-0.5 * x["q"][:, t]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, read))
    return torch.stack(outputs, 1), state


def normalized(x: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Linear attention over the running sum of keys z: o / (K^-1/2 z . q + 1e-10)."""
    given = dict(x)
    batch, _, heads, _ = x["v"].shape
    width = x["k"].shape[3]
    start = given.pop("initial_key_sum", x["v"].new_zeros(batch, heads, width))
    o, state = with_heads("linear_attention", given)
    shared = heads // x["k"].shape[2]
    q, k = (x[name].repeat_interleave(shared, 2) for name in ("q", "k"))
    z = start[:, None] + k.cumsum(1)
    return o / ((z * q).sum(3) * width**-0.5 + FLOOR)[..., None], state, z[:, -1]


def mlstm(x: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """h [B, T, H, V], C [B, H, K, V], n [B, H, K] and m [B, H], zero where not given.

    Beck et al. 2024 (xLSTM), equations 19 to 27, with the package's floor.
    """
    batch, steps, heads, width = x["q"].shape
    shapes = {
        "initial_state": (width, x["v"].shape[3]),
        "initial_normalizer": (width,),
        "initial_max": (),
    }
    memory, normalizer, m = (
        x.get(name, x["q"].new_zeros(batch, heads, *shape))
        for name, shape in shapes.items()
    )
    outputs = []
    for t in range(steps):
        q, k, v, i, f = (x[name][:, t] for name in "qkvif")
        kept = logsigmoid(f) + m
        m = torch.maximum(kept, i)
        decay, gain = (kept - m).exp(), (i - m).exp()
        outer = k[..., :, None] * v[..., None, :]
        memory = decay[..., None, None] * memory + gain[..., None, None] * outer
        normalizer = decay[..., None] * normalizer + gain[..., None] * k
        q = q * width**-0.5
        read = (normalizer * q).sum(-1)
        floor = torch.maximum(read.abs(), (-m).exp()) + MLSTM_FLOOR
        outputs.append(torch.einsum("bhkv,bhk->bhv", memory, q) / floor[..., None])
    return torch.stack(outputs, 1), memory, normalizer, m


def with_heads(op: str, x: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """o [B, T, heads, V] and the state [B, heads, K, V] of attention-like ops.

    S = diag(w) S diag(z) + p (q^T S) + k v^T. Steps are those of the ops' definitions:
    linear_attention to kda as in Yang et al. 2024 (gated delta networks), rwkv6 and
    rwkv7 as in Peng et al. 2024 and 2025.
    """
    values, keys = x["v"], x["k"]
    read = x["q"] if "q" in x else x["r"]
    batch, steps, heads = values.shape[:3]
    width = keys.shape[3]
    if op in SHARED:
        shared = heads // keys.shape[2]
        read, keys = (y.repeat_interleave(shared, 2) for y in (read, keys))
    scale = 1.0 if op == "rwkv7" else width**-0.5
    state = x.get(
        "initial_state", values.new_zeros(batch, heads, width, values.shape[3])
    )
    outputs = []
    for t in range(steps):
        k, v, r = keys[:, t], values[:, t], scale * read[:, t]
        decayed = decays(op, x, t, heads)[..., None] * state
        if "gv" in x:
            decayed = decayed * x["gv"][:, t, :, None].exp()
        write = v
        if "beta" in x:
            erased = torch.einsum("bhkv,bhk->bhv", decayed, k)
            write = x["beta"][:, t, :, None] * (v - erased)
        new = decayed + k[..., None] * write[..., None, :]
        if op == "rwkv7":
            seen = torch.einsum("bhkv,bhk->bhv", state, x["a"][:, t])
            new = new + x["b"][:, t, ..., None] * seen[..., None, :]
        held: Any = new
        if op == "rwkv6":
            held = state + (x["u"] * k)[..., None] * v[..., None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", held, r))
        state = new
    return torch.stack(outputs, 1), state


def decays(op: str, x: dict[str, Tensor], t: int, heads: int) -> Tensor:
    """diag(w) of a token, [B or 1, heads, K or 1]."""
    order = torch.arange(heads, dtype=torch.float64)
    if op == "retention":
        return (1 - 2 ** (-5 - order))[None, :, None]
    if op == "lightning_attention":
        return (-8 / heads * order).exp()[None, :, None]
    if op in ("simple_gla", "gated_delta_rule"):
        return x["g"][:, t, :, None].exp()
    for gate in ("g" if op == "kda" else "", "gk", "w"):
        if gate in x:
            return x[gate][:, t].exp()
    return torch.ones(1, heads, 1, dtype=torch.float64)
