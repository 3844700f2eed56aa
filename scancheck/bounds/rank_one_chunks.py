"""Error bounds of chunked kernels with a rank-one transition: states and outputs.

Within a chunk errors are bounded entry by entry, by sizes that do not depend on how a
kernel brackets its products (`products`). From chunk to chunk the error e of a state is
carried by the chunk's exact transition Phi: entry by entry |Phi| e, for the 2-norms of
its columns ||Phi|| |e| (numerics 2.10), and the smaller one holds. To that comes what a
chunk does to the state that the kernel has, S_0 + e.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.chunk_parts import ChunkParts
from scancheck.bounds.chunk_scores import Matrix
from scancheck.bounds.products import Products, Sized, exactly, turned
from scancheck.bounds.rules import Rules

FloatArray = NDArray[np.float64]


class Added(NamedTuple):
    """Errors that a chunk adds to a state."""

    entries: FloatArray  # [G, K, L]
    norms: FloatArray  # [G, L]: of columns, each at most that of the entries


class CarriedState(NamedTuple):
    """A state, or its cotangent, between chunks."""

    value: FloatArray  # [G, K, L]
    error: FloatArray  # [G, K, L]
    norm: FloatArray  # [G, L]: of a column's error
    peak: FloatArray  # [G]: the largest magnitude so far

    @property
    def matrix(self) -> Matrix:
        """With errors entry by entry."""
        return Matrix(self.value, self.error)

    def through(self, rows: FloatArray) -> FloatArray:
        """What `rows` [G, M, K] make of the error at most, [G, M, L]."""
        lengths = np.sqrt((rows * rows).sum(-1))
        by_norm = lengths[..., None] * self.norm[:, None]
        found: FloatArray = np.fmin(np.abs(rows) @ self.error, by_norm)
        return found

    def read(self, products: Products, rows: Sized) -> Sized:
        """Products of `rows` [G, M, K] and the state that the kernel has."""
        found = products.product(rows, exactly(self.value))
        keys = rows.size.shape[-1]
        growth = _both(products.cast_growth(2), products.growth(keys + 2))
        error = (1.0 + growth) * self.through(rows.error)
        error = error + growth * self.through(rows.size)
        return Sized(found.size + self.through(rows.size), found.error + error)

    def kept(self, products: Products, gate: Sized) -> tuple[Sized, FloatArray]:
        """The state times a gate [G, N, 1], and norms [G, L] of its error."""
        found = products.times(gate, exactly(self.value))
        off = gate.error + products.growth(1) * gate.top
        more = off * self.error
        norms = _columns(found.error) + off.max(1) * self.norm
        return Sized(found.size + gate.size * self.error, found.error + more), norms

    def moved(
        self,
        value: FloatArray,
        transition: FloatArray,
        norm: FloatArray,
        added: Added,
        rules: Rules,
        peak: FloatArray,
    ) -> "CarriedState":
        """After a chunk that moves it by `transition` and adds errors of its own."""
        entries = np.abs(transition) @ self.error + added.entries
        norms = norm[:, None] * self.norm + added.norms
        entries = np.fmin(entries, norms[:, None])
        if rules.state_u > 0.0:
            top = np.abs(value) + entries
            stored = rules.state_u * top + rules.state_eta
            over = ~(top <= rules.state_largest).all(axis=(1, 2))
            peak = np.where(over, np.inf, peak)
            entries, norms = entries + stored, norms + _columns(stored)
        norms = np.fmin(norms, _columns(entries))
        return CarriedState(value, entries, norms, np.maximum(self.peak, peak))


def _columns(x: FloatArray) -> FloatArray:
    """2-norms of columns, [G, L]."""
    found: FloatArray = np.sqrt((x * x).sum(1))
    return found


def _both(a: float, b: float) -> float:
    """Relative error of a product of two factors."""
    return a + b + a * b


def carried(value: FloatArray, error: FloatArray, peak: FloatArray) -> CarriedState:
    """A state whose errors are known entry by entry."""
    error = np.broadcast_to(error, value.shape)
    return CarriedState(value, error, _columns(error), peak)


def added_errors(
    products: Products,
    kept: tuple[Sized, FloatArray],
    rows: Sized,
    norm: FloatArray,
    x: Sized,
    others: tuple[Sized, ...] = (),
) -> Added:
    """Errors of Gamma S_0 + rows^T X + others.

    rows [G, C, K], of 2-norm `norm`, meets X [G, C, L]. What X is off by passes rows^T:
    in norms that is less than entry by entry, where nothing cancels.
    """
    passed = turned(rows.size) @ x.error
    through = np.fmin(_columns(passed), norm[:, None] * _columns(x.error))
    formed = products.product(rows.turned(), exactly(x.top))
    known = Sized(kept[0].size, np.zeros_like(kept[0].size))
    total = products.plus(known, Sized(formed.size, formed.error), *others)
    entries = kept[0].error + passed + total.error
    return Added(entries, kept[1] + through + _columns(total.error))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRun:
    """A chunk with its state: what the adjoint needs of it."""

    parts: ChunkParts
    state: CarriedState  # before the chunk
    x: Matrix  # with the error of the state in it
    monomials: FloatArray  # |T| |b| (|Z| + |read~| |S_0|), at least |X|
    residual: Sized  # |Z| + |read~| |S_0|


def run_chunk(
    products: Products, rules: Rules, parts: ChunkParts, state: CarriedState
) -> tuple[Matrix, CarriedState, ChunkRun]:
    """O [G, C, L], the state after the chunk, and what was met on the way."""
    inputs, start, s = parts.inputs, parts.from_start, state.value
    read, r, p = (parts.decayed(products, n) for n in ("read", "r", "p"))
    z, z_value = inputs.v.sized, inputs.v.value
    if parts.lower_k is not None:
        z = products.product(parts.lower_k.sized, z)
        z_value = parts.lower_k.value @ z_value
    # b (Z + sigma read~ S_0), and L^-1 of that; one more cast where L^-1 b read~ or
    # L^-1 b Z is formed first.
    residual = products.plus(z, state.read(products, read))
    scaled = products.times(inputs.b.sized, residual)
    right = z_value + inputs.sigma * (start["read"].value * inputs.read.value @ s)
    x_value = parts.inverse.value @ (inputs.b.value * right)
    passed = state.through(parts.moves)
    x, monomials = solved_for(products, parts, x_value, passed, scaled)
    if parts.is_factored:
        inner = parts.before_decay(x.top)
        products.seen(exactly(inner))
        products.seen(exactly(inputs.r.sized.top @ inner))
    o = [state.read(products, r), products.product(parts.scores.sized, x)]
    o_value = start["r"].value * inputs.r.value @ s + parts.scores.value @ x_value
    p_value = start["p"].value * inputs.p.value
    after_value = parts.whole.value * s + turned(p_value) @ x_value
    others: tuple[Sized, ...] = ()
    if inputs.k is not None:
        assert parts.scores_k is not None
        k = parts.decayed(products, "k")
        o.append(products.product(parts.scores_k.sized, inputs.v.sized))
        o_value = o_value + parts.scores_k.value @ inputs.v.value
        others = (products.product(k.turned(), inputs.v.sized),)
        k_value = start["p"].value * inputs.k.value
        after_value = after_value + turned(k_value) @ inputs.v.value
    error = products.plus(*o).error + state.through(parts.reads)
    kept = state.kept(products, parts.gate)
    added = added_errors(products, kept, p, parts.p_norm, x, others)
    final = state.moved(
        after_value, parts.transition, parts.norm, added, rules, products.peak
    )
    products.seen(final.matrix.sized)
    run = ChunkRun(
        parts=parts,
        state=state,
        x=Matrix(x_value, x.error + passed),
        monomials=monomials,
        residual=residual,
    )
    return Matrix(o_value, error), final, run


def solved_for(
    products: Products,
    parts: ChunkParts,
    x_value: FloatArray,
    passed: FloatArray,
    right: Sized,
    *,
    turn: bool = False,
) -> tuple[Sized, FloatArray]:
    """X = T R [G, C, L] as a kernel has it, and |T| |R|; `turn`: X = T^T R.

    The exact X of the kernel's own state is at most |X| + passed.
    """
    inverse = parts.inverse.turned() if turn else parts.inverse
    found = products.cast(products.product(inverse.sized, right), 2)
    size = np.abs(x_value) + passed
    return Sized(size, found.error + inverse.moved(size)), found.size
