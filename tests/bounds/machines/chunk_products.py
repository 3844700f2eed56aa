"""Chunks as people write them in matrix products, in torch on the CPU.

A `Unit` says how operands are rounded and how products are summed up. Every form takes
queries, keys, log decays [G, T, K or 1] and values [G, T, L] in fp32 with the initial
state [G, K, L], and gives o and the final state:

    masked      scores times exp(c_t - c_j), one decay for all keys (Dao and Gu 2024)
    factored    queries times exp(c_t), keys times exp(-c_j) (Yang et al. 2023, 4.2)
    two_level   the same from the start of each block of 4, and one by one inside it
                (Yang et al. 2023, 4.3)

The backward pass is either torch's through the roundings, or written out as chunk
kernels do it, which keep no scores and give gates a sum in reverse.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scancheck.formats import Format, round_array

BLOCK = 4
_SHORT = 53 - 24  # bits of a float64 that fp32 does not have


def truncated(x: Any) -> Any:
    """float64 cut to the 24 bits of fp32."""
    bits = np.ascontiguousarray(x, dtype=np.float64).view(np.int64)
    return (bits & ~np.int64(2**_SHORT - 1)).view(np.float64)


class _Rounding(torch.autograd.Function):
    """A cast to the format and back, and the same of its cotangent, as torch's are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fmt: Format) -> Tensor:
        ctx.fmt = fmt
        return rounded(x, fmt)

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> tuple[Tensor, None]:
        return rounded(bars[0], ctx.fmt), None


def rounded(x: Tensor, fmt: Format) -> Tensor:
    """fp32 values rounded once into the format."""
    values = round_array(fmt, x.detach().double().numpy())
    return torch.tensor(values, dtype=torch.float32)


class _Growing(torch.autograd.Function):
    """An adversary's cast, always away from zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fmt: Format) -> Tensor:
        ctx.fmt = fmt
        return grown(x, fmt)

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> tuple[Tensor, None]:
        return grown(bars[0], ctx.fmt), None


def grown(x: Tensor, fmt: Format) -> Tensor:
    """x with one bit more than the format, away from zero: off by less than u |x|."""
    significand, exponent = np.frexp(x.detach().double().numpy())
    bits = 2.0 ** (fmt.precision + 1)
    away = np.copysign(np.ceil(np.abs(significand) * bits), significand) / bits
    return torch.tensor(np.ldexp(away, exponent), dtype=torch.float32)


@dataclass(frozen=True)
class Unit:
    """How matrix products round: sums to nearest or `truncates`, or adversarially."""

    fmt: Format
    truncates: bool = False
    adversarial: bool = False

    def cast(self, x: Tensor) -> Tensor:
        """Operands as the unit takes them."""
        kind = _Growing if self.adversarial else _Rounding
        return kind.apply(x, self.fmt)  # type: ignore[no-untyped-call,no-any-return]

    def product(self, x: Tensor, y: Tensor) -> Tensor:
        """x y, summed up in fp32."""
        x, y = self.cast(x), self.cast(y)
        if not self.truncates:
            return x @ y
        left, right = x.detach().double().numpy(), y.detach().double().numpy()
        total = np.zeros((*left.shape[:-1], right.shape[-1]))
        for i in range(left.shape[-1]):
            total = truncated(total + left[..., i, None] * right[..., i, None, :])
        return torch.tensor(total, dtype=torch.float32)


@dataclass(frozen=True)
class Chunk:
    """One chunk: running sums of log decays, and the products that all forms share."""

    unit: Unit
    form: str
    q: Tensor
    k: Tensor
    v: Tensor
    c: Tensor  # [G, C, K or 1]
    u: Tensor | None = None  # [G, 1, K]: queries read before their token, and u k v^T

    @property
    def at(self) -> Tensor:
        """The running sums as queries see them."""
        if self.u is None:
            return self.c
        return torch.nn.functional.pad(self.c, (0, 0, 1, 0))[:, :-1]

    @property
    def whole(self) -> Tensor:
        """The decay over the chunk, [G, K or 1, 1]."""
        return self.c[:, -1:].exp().mT

    def queries(self) -> Tensor:
        """Decayed from the start of the chunk."""
        return self.unit.cast(self.q * self.at.exp())

    def keys(self) -> Tensor:
        """Decayed to the end of the chunk."""
        return self.unit.cast(self.k * (self.c[:, -1:] - self.c).exp())

    def mask(self) -> Tensor:
        """Where the key is no later than the query."""
        steps = self.c.shape[1]
        return torch.ones(steps, steps, dtype=torch.bool).tril(
            0 if self.u is None else -1
        )

    def between(self) -> Tensor:
        """exp(c_t - c_j), [G, C, C], zero above the diagonal."""
        d = self.c - self.c.mT
        return torch.where(self.mask(), d, -torch.inf).exp()

    def blocks(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Each block with all that is before it, and c at its start."""
        for first in range(0, self.c.shape[1], BLOCK):
            start = self.c[:, first : first + 1]
            yield slice(first, first + BLOCK), slice(0, first), start

    def near(self, here: slice) -> Tensor:
        """exp(c_t - c_j) inside a block, [G, b, b, K], zero above the diagonal."""
        d = self.c[:, here, None] - self.c[:, None, here]
        return torch.where(self.mask()[here, here, None], d, -torch.inf).exp()

    def scores(self) -> Tensor:
        """q_t k_j times the decays between, [G, C, C], masked."""
        q, k, c, unit = self.q, self.k, self.c, self.unit
        if self.form == "masked":
            return unit.product(q, k.mT) * self.between()
        if self.form == "factored":
            s = unit.product(q * self.at.exp(), (k * (-c).exp()).mT)
            s = torch.where(self.mask(), s, 0.0)
            return s if self.u is None else s + (q * self.u * k).sum(2).diag_embed()
        rows = []
        for here, before, start in self.blocks():
            near = self.near(here)
            own = (q[:, here, None] * k[:, None, here] * near).sum(3)
            far = unit.product(
                q[:, here] * (c[:, here] - start).exp(),
                (k[:, before] * (start - c[:, before]).exp()).mT,
            )
            rest = c.shape[1] - before.stop - own.shape[1]
            rows.append(torch.nn.functional.pad(torch.cat([far, own], 2), (0, rest)))
        return torch.cat(rows, 1)

    def from_scores(self, bars: Tensor) -> tuple[Tensor, Tensor]:
        """dq and dk of the masked cotangents of the scores."""
        q, k, c, unit = self.q, self.k, self.c, self.unit
        if self.form == "masked":
            bars = unit.cast(bars * self.between())
            return unit.product(bars, k), unit.product(bars.mT, q)
        if self.form == "factored":
            away, back = c.exp(), (-c).exp()
            dq = unit.product(bars, k * back) * away
            return dq, unit.product(bars.mT, q * away) * back
        dq, dk = torch.zeros_like(q), torch.zeros_like(k)
        for here, before, start in self.blocks():
            near = self.near(here)
            own = bars[:, here, here, None] * near
            dq[:, here] += (own * k[:, None, here]).sum(2)
            dk[:, here] += (own * q[:, here, None]).sum(1)
            away, back = (c[:, here] - start).exp(), (start - c[:, before]).exp()
            far = bars[:, here, before]
            dq[:, here] += unit.product(far, k[:, before] * back) * away
            dk[:, before] += unit.product(far.mT, q[:, here] * away) * back
        return dq, dk


def forward(
    chunks: list[Chunk], state: Tensor, kept: Format | None = None
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """o, the final state, and the states before each chunk, `kept` in a format."""
    rows, states = [], []
    for one in chunks:
        states.append(state)
        across = one.unit.product(one.queries(), state)
        rows.append(across + one.unit.product(one.scores(), one.v))
        state = state * one.whole + one.unit.product(one.keys().mT, one.v)
        state = state if kept is None else rounded(state, kept)
    return torch.cat(rows, 1), state, states


def backward(
    chunks: list[Chunk], states: list[Tensor], last: Tensor, do: Tensor, bar: Tensor
) -> dict[str, Tensor]:
    """Gradients written out; `last` is the final state and `bar` its cotangent."""
    rows: list[dict[str, Tensor]] = []
    gates = (bar * last).sum(2)[:, None]
    stop = do.shape[1]
    for one, state in zip(reversed(chunks), reversed(states), strict=True):
        unit, start = one.unit, stop - one.c.shape[1]
        y = do[:, start:stop]
        scores = torch.where(one.mask(), unit.product(y, one.v.mT), 0.0)
        dq, dk = one.from_scores(scores)
        dq = dq + unit.product(y, state.mT) * one.c.exp()
        dk = dk + unit.product(one.v, bar.mT) * (one.c[:, -1:] - one.c).exp()
        dv = unit.product(one.scores().mT, y) + unit.product(one.keys(), bar)
        steps = (one.q * dq - one.k * dk).flip(1).cumsum(1).flip(1) + gates
        gates = steps[:, :1]
        rows.insert(0, {"q": dq, "k": dk, "v": dv, "log": steps})
        bar = bar * one.whole + unit.product(one.queries().mT, y)
        stop = start
    found = {name: torch.cat([row[name] for row in rows], 1) for name in rows[0]}
    return found | {"state": bar}


def split(
    unit: Unit, form: str, size: int, q: Tensor, k: Tensor, v: Tensor, log: Tensor
) -> list[Chunk]:
    """The chunks of a sequence, the last one as long as it gets."""
    parts = (x.split(size, 1) for x in (q, k, v, log))
    return [
        Chunk(unit, form, a, b, unit.cast(x), g.cumsum(1))
        for a, b, x, g in zip(*parts, strict=True)
    ]
