"""The ops with heads in torch, token by token, as their step formulas are written.

Every function takes the op's tensors, state [B, heads, K, V] first, and gives the
output and the final state. Nothing is taken from scancheck.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Steps = Iterator[tuple[Tensor, ...]]


def tokens(heads: int, *tensors: Tensor) -> Steps:
    """The tensors of each token, [B, heads, ...], a head repeated to `heads`."""
    repeated = [x.repeat_interleave(heads // x.shape[2], dim=2) for x in tensors]
    for t in range(tensors[0].shape[1]):
        yield tuple(x[:, t] for x in repeated)


def begin(q: Tensor, v: Tensor, state: Tensor | None) -> Tensor:
    """The initial state, or zeros."""
    if state is not None:
        return state
    return v.new_zeros(v.shape[0], v.shape[2], q.shape[3], v.shape[3])


def outer(k: Tensor, v: Tensor) -> Tensor:
    """k v^T of each batch row and head."""
    return k[..., :, None] * v[..., None, :]


def read(state: Tensor, q: Tensor) -> Tensor:
    """S^T q."""
    return torch.einsum("bhkv,bhk->bhv", state, q)


def joined(rows: list[Tensor], v: Tensor) -> Tensor:
    """The outputs of all tokens, [B, T, heads, V]."""
    return torch.stack(rows, 1) if rows else v * 0.0


def decayed(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor | None, decay: Tensor
) -> tuple[Tensor, Tensor]:
    """S = decay S + k v^T, decay [HV] or [B, T, HV]."""
    if decay.ndim == 1:
        decay = decay.expand(*v.shape[:3])
    s, rows = begin(q, v, state), []
    for qt, kt, vt, dt in tokens(v.shape[2], q, k, v, decay):
        s = dt[..., None, None] * s + outer(kt, vt)
        rows.append(read(s, qt) / q.shape[3] ** 0.5)
    return joined(rows, v), s


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """S = S + k v^T."""
    return decayed(q, k, v, initial_state, v.new_ones(v.shape[2]))


def normalized_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: Tensor | None = None,
    initial_key_sum: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """S = S + k v^T; z = z + k; o = scale S^T q / (scale z.q + 1e-10)."""
    s, rows, z = begin(q, v, initial_state), [], initial_key_sum
    if z is None:
        z = s[..., 0] * 0.0
    for qt, kt, vt in tokens(v.shape[2], q, k, v):
        s, z = s + outer(kt, vt), z + kt
        qt = qt / q.shape[3] ** 0.5
        rows.append(read(s, qt) / ((qt * z).sum(-1, keepdim=True) + 1e-10))
    return joined(rows, v), s, z


def simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """S = exp(g) S + k v^T."""
    return decayed(q, k, v, initial_state, g.exp())


def retention(
    q: Tensor, k: Tensor, v: Tensor, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """S = (1 - 2^(-5-j)) S + k v^T."""
    decay = [1 - 1 / 2 ** (5 + j) for j in range(v.shape[2])]
    return decayed(q, k, v, initial_state, torch.tensor(decay, dtype=v.dtype))


def lightning_attention(
    q: Tensor, k: Tensor, v: Tensor, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """S = exp(-(8 / HV) j) S + k v^T."""
    heads = v.shape[2]
    slopes = torch.tensor([8 * j / heads for j in range(heads)], dtype=v.dtype)
    return decayed(q, k, v, initial_state, torch.exp(-slopes))


def gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gk: Tensor,
    gv: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """S = diag(exp gk) S diag(exp gv) + k v^T."""
    s, rows = begin(q, v, initial_state), []
    gv = torch.zeros_like(v) if gv is None else gv
    for qt, kt, vt, a, b in tokens(v.shape[2], q, k, v, gk, gv):
        s = torch.exp(a[..., :, None] + b[..., None, :]) * s + outer(kt, vt)
        rows.append(read(s, qt) / q.shape[3] ** 0.5)
    return joined(rows, v), s


def rwkv6(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    u: Tensor,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """o = scale (S + diag(u) k v^T)^T r, then S = diag(exp w) S + k v^T."""
    s, rows = begin(r, v, initial_state), []
    for rt, kt, vt, wt in tokens(v.shape[2], r, k, v, w):
        kv = outer(kt, vt)
        rows.append(read(s + u[None, :, :, None] * kv, rt) / r.shape[3] ** 0.5)
        s = wt.exp()[..., None] * s + kv
    return joined(rows, v), s


def rwkv7(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """S = diag(exp w) S + b (a^T S) + k v^T."""
    s, rows = begin(r, v, initial_state), []
    for rt, wt, kt, vt, at, bt in tokens(v.shape[2], r, w, k, v, a, b):
        s = wt.exp()[..., None] * s + outer(bt, read(s, at)) + outer(kt, vt)
        rows.append(read(s, rt))
    return joined(rows, v), s


def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """S' = diag(exp g) S; S = S' + beta k (v - S'^T k)^T."""
    s, rows = begin(q, v, initial_state), []
    for qt, kt, vt, bt, gt in tokens(v.shape[2], q, k, v, beta, g):
        s = gt.exp()[..., None] * s
        s = s + bt[..., None, None] * outer(kt, vt - read(s, kt))
        rows.append(read(s, qt) / q.shape[3] ** 0.5)
    return joined(rows, v), s


def gated_delta_product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One decay a token, then S = S + beta k (v - S^T k)^T for each of its steps."""
    s, rows = begin(q, v[:, :, 0], initial_state), []
    for t in range(q.shape[1]):
        s = g[:, t].exp()[..., None, None] * s
        for j in range(k.shape[2]):
            key, strength = k[:, t, j], beta[:, t, j, :, None, None]
            s = s + strength * outer(key, v[:, t, j] - read(s, key))
        rows.append(read(s, q[:, t]) / q.shape[3] ** 0.5)
    return joined(rows, v[:, :, 0]), s


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """S' = exp(g) S; S = S' + beta k (v - S'^T k)^T."""
    gates = g[..., None].expand(*g.shape, q.shape[3])
    return kda(q, k, v, beta, gates, initial_state)


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """S = S + beta k (v - S^T k)^T."""
    return gated_delta_rule(q, k, v, beta, torch.zeros_like(beta), initial_state)


def mlstm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    initial_state: Tensor | None = None,
    initial_normalizer: Tensor | None = None,
    initial_max: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Without its stabiliser: C~ = e^m C and n~ = e^m n, and m beside them.

    C~ = sigmoid(f) C~ + e^i k v^T; h = C~^T r / (max(|n~.r|, 1) + 1e-6 e^m). Autograd
    then adds up no derivatives that cancel.
    """
    s, rows = begin(q, v, initial_state), []
    n = s[..., 0] * 0.0 if initial_normalizer is None else initial_normalizer
    m = n[..., 0] * 0.0 if initial_max is None else initial_max
    s, n = s * m.exp()[..., None, None], n * m.exp()[..., None]
    for qt, kt, vt, it, ft in tokens(v.shape[2], q, k, v, i, f):
        forget = torch.nn.functional.logsigmoid(ft)
        m, r = torch.maximum(forget + m, it), qt / q.shape[3] ** 0.5
        s = forget.exp()[..., None, None] * s + it.exp()[..., None, None] * outer(
            kt, vt
        )
        n = forget.exp()[..., None] * n + it.exp()[..., None] * kt
        below = torch.clamp((n * r).sum(-1).abs(), min=1.0) + 1e-6 * m.exp()
        rows.append(read(s, r) / below[..., None])
    unit = (-m).exp()
    return joined(rows, v), s * unit[..., None, None], n * unit[..., None], m


def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
) -> tuple[Tensor, Tensor]:
    """S = exp(d A) S + d x B^T (P x N); y = (S C + D x) silu(z)."""
    d = dt if dt_bias is None else dt + dt_bias
    if dt_softplus:
        d = torch.logaddexp(d, torch.zeros_like(d))
    s, rows = initial_states, []
    if s is None:
        s = x.new_zeros(x.shape[0], *x.shape[2:], B.shape[3])
    for xt, step, bt, ct in tokens(x.shape[2], x, d, B, C):
        decay = torch.exp(step * A)[..., None, None]
        s = decay * s + outer(step[..., None] * xt, bt)
        rows.append(torch.einsum("bhpn,bhn->bhp", s, ct))
    y = joined(rows, x)
    if D is not None:
        y = y + D[:, None] * x
    if z is not None:
        y = y * z * torch.sigmoid(z)
    return y, s


STEPS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    function.__name__: function
    for function in (
        linear_attention,
        normalized_linear_attention,
        simple_gla,
        retention,
        lightning_attention,
        gla,
        rwkv6,
        ssd,
        delta_rule,
        gated_delta_rule,
        gated_delta_product,
        kda,
        rwkv7,
        mlstm,
    )
}
