"""Chunked kernels of rank-one ops in torch, on a CPU: casts of operands, fp32 sums.

Written from the papers' formulas (the UT transform of Yang et al., 2024, and the DPLR
form of RWKV-7), as kernels of flash-linear-attention go: nothing is taken from
scancheck. Everything is differentiable: gradients are torch's of these steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class Machine:
    """How a chunked kernel goes about it."""

    chunk: int
    operands: torch.dtype = torch.float32  # operands of matrix products
    inverse: str = "substitution"  # substitution, block, neumann, solve
    wy: bool = True  # L^-1 (b Z) and L^-1 (b K~) apart, or one right-hand side
    factored: bool = False  # exp(c_t) exp(-c_j)
    state: torch.dtype = torch.float32  # of the state between chunks
    fault: str = ""  # carry, decayed_twice

    def cast(self, x: Tensor) -> Tensor:
        """An operand."""
        return x.to(self.operands).to(torch.float32)

    def store(self, x: Tensor) -> Tensor:
        """The state between two chunks."""
        return x.to(self.state).to(torch.float32)

    def mm(self, a: Tensor, b: Tensor) -> Tensor:
        """A matrix product."""
        return self.cast(a) @ self.cast(b)


def scores(m: Machine, x: Tensor, y: Tensor, at: Tensor, c: Tensor, k: int) -> Tensor:
    """sum_i x_ti exp(at_ti - c_ji) y_ji below the k-th diagonal; [..., C, C]."""
    size = x.shape[-2]
    mask = torch.ones(size, size, dtype=torch.bool).tril(-k)
    if m.factored:
        s = m.mm(x * at.exp(), (y * (-c).exp()).mT)
    elif c.shape[-1] == 1:
        d = torch.where(mask, at - c.mT, torch.zeros(()))
        s = m.mm(x, y.mT) * d.exp()
    else:
        d = torch.where(
            mask[..., None], at[..., :, None, :] - c[..., None, :, :], torch.zeros(())
        )
        s = (m.cast(x)[..., :, None, :] * m.cast(y)[..., None, :, :] * d.exp()).sum(-1)
    return torch.where(mask, s, torch.zeros(()))


def by_rows(lower: Tensor) -> Tensor:
    """(I + lower)^-1, one row after the other."""
    size = lower.shape[-1]
    eye = torch.eye(size).expand(lower.shape)
    rows = [eye[..., 0, :]]
    for i in range(1, size):
        done = torch.stack(rows, -2)
        rows.append(eye[..., i, :] - (lower[..., i, None, :i] @ done)[..., 0, :])
    return torch.stack(rows, -2)


def by_blocks(m: Machine, lower: Tensor) -> Tensor:
    """Pairs of inverted blocks merged, from 16 rows on."""
    size = lower.shape[-1]
    if size <= 16:
        return by_rows(lower)
    half = 16
    while 2 * half < size:
        half *= 2
    a, d = (
        by_blocks(m, lower[..., :half, :half]),
        by_blocks(m, lower[..., half:, half:]),
    )
    corner = -m.mm(d, m.mm(lower[..., half:, :half], a))
    top = torch.cat([a, torch.zeros_like(corner.mT)], -1)
    return torch.cat([top, torch.cat([corner, d], -1)], -2)


def by_block_rows(m: Machine, lower: Tensor) -> Tensor:
    """Block row after block row, as solve_tril of flash-linear-attention."""
    size, rows = lower.shape[-1], []
    edges = [*range(0, size, 16), size]
    spans = [slice(a, b) for a, b in pairwise(edges)]
    for i, span in enumerate(spans):
        own = by_rows(lower[..., span, span])
        parts = []
        for j, other in enumerate(spans):
            if j < i:
                total = sum(
                    m.mm(lower[..., span, spans[k]], rows[k][j]) for k in range(j, i)
                )
                parts.append(-m.mm(own, total))
            else:
                zero = torch.zeros(
                    *lower.shape[:-2], own.shape[-2], other.stop - other.start
                )
                parts.append(own if i == j else zero)
        rows.append(parts)
    return torch.cat([torch.cat(parts, -1) for parts in rows], -2)


def by_powers(m: Machine, lower: Tensor) -> Tensor:
    """(I + A)(I + A^2)(I + A^4) ... with A = -lower."""
    eye = torch.eye(lower.shape[-1])
    power, reach = -lower, 2
    found = eye + power
    while reach < lower.shape[-1]:
        power = m.mm(power, power)
        found = found + m.mm(found, power)
        reach *= 2
    return found


def inverted(m: Machine, lower: Tensor) -> Tensor:
    """(I + lower)^-1 in the machine's way."""
    ways: dict[str, Callable[[], Tensor]] = {
        "substitution": lambda: by_rows(lower),
        "block": lambda: by_blocks(m, lower),
        "block_rows": lambda: by_block_rows(m, lower),
        "neumann": lambda: by_powers(m, lower),
    }
    return ways[m.inverse]()


def heads_first(x: Tensor, heads: int) -> Tensor:
    """[B, T, H, ...] -> [B, heads, T, ...]."""
    x = x.repeat_interleave(heads // x.shape[2], dim=2)
    return x.transpose(1, 2)


def delta(m: Machine, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None,
          state: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A (gated) delta rule; g [B, T, HV] or [B, T, HV, K]."""
    heads = v.shape[2]
    q, k, v = (heads_first(x, heads) for x in (q, k, v))
    q = q * k.shape[-1] ** -0.5
    beta = beta.transpose(1, 2)[..., None]
    if g is None:
        g = torch.zeros_like(beta)
    else:
        g = g.transpose(1, 2)
        g = g if g.ndim == 4 else g[..., None]
    s, rows = state, []
    for at in range(0, v.shape[2], m.chunk):
        span = slice(at, at + m.chunk)
        qc, kc, vc, bc = q[:, :, span], k[:, :, span], v[:, :, span], beta[:, :, span]
        c = g[:, :, span].cumsum(2)
        lower = bc * scores(m, kc, kc, c, c, 1)
        attention = scores(m, qc, kc, c, c, 0)
        if m.inverse == "solve":
            right = bc * (vc - m.mm(kc * c.exp(), s))
            rows_x: list[Tensor] = []
            for i in range(vc.shape[2]):
                row = right[..., i, :]
                if i:
                    row = (
                        row
                        - (lower[..., i, None, :i] @ torch.stack(rows_x, -2))[..., 0, :]
                    )
                rows_x.append(row)
            x = torch.stack(rows_x, -2)
        else:
            inverse = inverted(m, lower)
            if m.wy:
                u = m.mm(inverse, bc * vc)
                x = m.cast(u) - m.mm(m.mm(inverse, bc * c.exp() * kc), s)
            else:
                x = m.mm(inverse, bc * (vc - m.mm(kc * c.exp(), s)))
        rows.append(m.mm(qc * c.exp(), s) + m.mm(attention, x))
        last = c[..., -1:, :]
        if m.fault == "decayed_twice":
            last = last + g[:, :, span][..., -1:, :]
        keep = s * last.exp().mT
        if m.fault == "carry" and at:
            keep = torch.zeros_like(s)
        s = m.store(keep + m.mm((kc * (c[..., -1:, :] - c).exp()).mT, x))
    return torch.cat(rows, 2).transpose(1, 2), s


def rwkv7(m: Machine, r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor,
          state: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
    """DPLR: a reads the state before its decay."""
    r, w, k, v, a, b = (x.transpose(1, 2) for x in (r, w, k, v, a, b))
    s, rows = state, []
    for at in range(0, v.shape[2], m.chunk):
        span = slice(at, at + m.chunk)
        rc, wc, kc, vc, ac, bc = (x[:, :, span] for x in (r, w, k, v, a, b))
        c = wc.cumsum(2)
        e = c - wc
        lower = -scores(m, ac, bc, e, c, 1)
        inverse = inverted(m, lower)
        read = ac * e.exp()
        if m.wy:
            u = m.mm(m.mm(inverse, scores(m, ac, kc, e, c, 1)), vc)
            x = m.cast(u) + m.mm(m.mm(inverse, read), s)
        else:
            x = m.mm(inverse, m.mm(read, s) + m.mm(scores(m, ac, kc, e, c, 1), vc))
        rows.append(
            m.mm(rc * c.exp(), s)
            + m.mm(scores(m, rc, bc, c, c, 0), x)
            + m.mm(scores(m, rc, kc, c, c, 0), vc)
        )
        last = c[..., -1:, :]
        keep = s * last.exp().mT
        if m.fault == "carry" and at:
            keep = torch.zeros_like(s)
        left = (last - c).exp()
        s = keep + m.mm((bc * left).mT, x) + m.mm((kc * left).mT, vc)
        s = m.store(s)
    return torch.cat(rows, 2).transpose(1, 2), s


def run(m: Machine, op: str, x: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Output and final state of an op's tensors."""
    state = x["initial_state"]
    if op == "rwkv7":
        return rwkv7(m, *(x[n] for n in "rwkvab"), state)
    return delta(m, x["q"], x["k"], x["v"], x["beta"], x.get("g"), state)
