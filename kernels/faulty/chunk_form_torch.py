"""Ops with heads in chunks of matrix products, in parts that a bug may replace.

With c_t the running sum of log decays inside a chunk of C tokens, S the state carried
into it, and sums over earlier tokens j <= t of the chunk (j < t before the update):

    A_tj = q_t^T diag(exp(c_t - c_j)) k_j        o_t = q_t^T diag(exp c_t) S + A_tj x_j
    S'   = diag(exp c_C) S + sum of diag(exp(c_C - c_j)) k_j x_j^T

with x = v, or the delta rule's x = (I + N)^-1 diag(beta) (V - K diag(exp c) S), N_tj =
beta_t k_t^T diag(exp(c_t - c_j)) k_j below the diagonal (Yang et al., "Gated Delta
Networks", 2024). RWKV-6 reads before the update, with c_{t-1}, and adds its bonus.
Tensors are those of the ops, [B, T, heads, ...]. Computation is in fp32, or in fp64 for
fp64 tensors. `attention` of `ChunkParts()` is the control, without a fault.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from scancheck.kernels.faulty.calling_form import Given, widened

CHUNK = 16
Compute = Callable[[Given], tuple[Tensor, Tensor]]


def masked_before(exponents: Tensor, mask: Tensor) -> Tensor:
    """exp of the exponents where the mask holds, 0 elsewhere."""
    return exponents.masked_fill(~mask, -torch.inf).exp()


def by_substitution(lower: Tensor) -> Tensor:
    """(I + N)^-1."""
    unit = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
    inverse: Tensor = torch.linalg.solve_triangular(
        unit + lower, unit, upper=False, unitriangular=True
    )
    return inverse


def until_read(until: Tensor, logs: Tensor) -> Tensor:
    """The log decay of the carried state until each token reads it, [..., C, K].

    `until` is c_t, or c_{t-1} before the update; `logs` are the chunk's gates.
    """
    return until


def whole(after: Tensor, local: Tensor) -> Tensor:
    """The state that the next chunk starts from.

    `after` is that after the chunk, `local` what the chunk makes of a zero state.
    """
    return after


def as_given(compute: Compute, given: Given) -> tuple[Tensor, Tensor]:
    """What is computed from the tensors as they come."""
    return compute(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkParts:
    """The parts of a call; the defaults are right, a planted bug replaces one."""

    pair_decays: Callable[[Tensor, Tensor], Tensor] = masked_before  # of what is read
    inverse: Callable[[Tensor], Tensor] = by_substitution
    read_decay: Callable[[Tensor, Tensor], Tensor] = until_read
    carry: Callable[[Tensor, Tensor], Tensor] = whole
    around: Callable[[Compute, Given], tuple[Tensor, Tensor]] = as_given


FORM = ChunkParts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Steps of all chunks, [B, heads, chunks, C, width]."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor | None  # width 1
    logs: Tensor  # log decays, width K or 1

    @property
    def sums(self) -> Tensor:
        """c_t."""
        return self.logs.cumsum(-2)


def attention(form: ChunkParts, given: Given) -> tuple[Tensor, Tensor]:
    """o [B, T, heads, V] in the format of v, and the final state."""
    return form.around(partial(_computed, form), given)


def _computed(form: ChunkParts, given: Given) -> tuple[Tensor, Tensor]:
    before = "u" in given
    steps = given["v"].shape[1]
    # Once: what is converted twice has its gradient rounded twice, and then added up.
    wide = {name: widened(x) for name, x in given.items()}
    chunks = _chunks(wide)
    sums = chunks.sums
    until = _before(sums) if before else sums
    mask = _lower_triangle(sums, strict=before)
    decays = form.pair_decays(_differences(until, sums), mask)
    own_scores = _scores(chunks.q, chunks.k, decays)
    inverse = None
    if chunks.beta is not None:
        below = _lower_triangle(sums, strict=True)
        pairs = masked_before(_differences(sums, sums), below)
        inverse = form.inverse(chunks.beta * _scores(chunks.k, chunks.k, pairs))
    reads = chunks.q * form.read_decay(until, chunks.logs).exp()
    erased, kept = chunks.k * sums.exp(), chunks.k * (sums[..., -1:, :] - sums).exp()
    entering = state = _initial(wide, chunks)
    outputs = []
    for n in range(sums.shape[2]):

        def written(start: Tensor, n: int = n) -> Tensor:
            v = chunks.v[:, :, n]
            if chunks.beta is None or inverse is None:
                return v
            error = chunks.beta[:, :, n] * (v - erased[:, :, n] @ start)
            return inverse[:, :, n] @ error

        def after(start: Tensor, n: int = n) -> Tensor:
            total = sums[:, :, n, -1].exp()[..., None]
            return total * start + kept[:, :, n].mT @ written(start)

        own = own_scores[:, :, n] @ written(entering)
        outputs.append(reads[:, :, n] @ entering + own)
        state = after(entering)
        entering = form.carry(state, after(torch.zeros_like(entering)))
    if not outputs:
        return given["v"].clone(), state * 1.0
    o = torch.stack(outputs, 2).flatten(2, 3)[:, :, :steps].transpose(1, 2)
    if before:
        o = o + _bonus(wide)
    return o.to(given["v"].dtype), state


def _chunks(given: Given) -> Chunks:
    v = given["v"]
    heads = v.shape[2]
    names = ("r", "k") if "r" in given else ("q", "k")
    q, k = (
        given[name].repeat_interleave(heads // given[name].shape[2], 2)
        for name in names
    )
    gate = given.get("g", given.get("w"))
    logs = v.new_zeros(*v.shape[:3], 1) if gate is None else gate
    beta = given["beta"][..., None] if "beta" in given else None
    return Chunks(
        q=_cut(q * q.shape[3] ** -0.5),
        k=_cut(k),
        v=_cut(v),
        beta=None if beta is None else _cut(beta),
        logs=_cut(logs if logs.ndim == 4 else logs[..., None]),
    )


def _cut(x: Tensor) -> Tensor:
    """[B, T, heads, width] -> [B, heads, chunks, C, width], filled up with zeros."""
    x = pad(x, (0, 0, 0, 0, 0, -x.shape[1] % CHUNK))
    batch, steps, *rest = x.shape
    return x.reshape(batch, steps // CHUNK, CHUNK, *rest).permute(0, 3, 1, 2, 4)


def _before(sums: Tensor) -> Tensor:
    """c_{t-1}, zero at a chunk's first token."""
    return pad(sums[..., :-1, :], (0, 0, 1, 0))


def _lower_triangle(sums: Tensor, *, strict: bool) -> Tensor:
    """Which tokens a token of the chunk has behind it, [C, C, 1]."""
    place = torch.arange(sums.shape[-2], device=sums.device)
    later = place[:, None] - int(strict) >= place
    return later[..., None]


def _differences(until: Tensor, sums: Tensor) -> Tensor:
    """c_t - c_j, [..., C, C, K or 1]."""
    return until[..., :, None, :] - sums[..., None, :, :]


def _scores(x: Tensor, y: Tensor, decays: Tensor) -> Tensor:
    """x_t^T diag(decay_tj) y_j, [..., C, C]."""
    if decays.shape[-1] == 1:
        return (x @ y.mT) * decays[..., 0]
    return (x[..., :, None, :] * y[..., None, :, :] * decays).sum(-1)


def _initial(given: Given, chunks: Chunks) -> Tensor:
    """The initial state [B, heads, K, V]."""
    state = given.get("initial_state")
    if state is not None:
        return state * 1.0
    batch, heads = chunks.v.shape[:2]
    return chunks.v.new_zeros(batch, heads, chunks.k.shape[-1], chunks.v.shape[-1])


def _bonus(given: Given) -> Tensor:
    """(sum over keys of K^-1/2 r u k) v, [B, T, heads, V]."""
    r, k, u, v = (given[name] for name in ("r", "k", "u", "v"))
    weight: Tensor = (r * u * k).sum(-1, keepdim=True) * r.shape[3] ** -0.5
    return weight * v
