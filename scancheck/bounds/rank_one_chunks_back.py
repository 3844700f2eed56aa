"""Error bounds of chunked kernels with a rank-one transition: gradients.

The adjoint of `rank_one_chunks`, with G the cotangent of the chunk's last state and
x^ that of x (numerics 2.9, 2.10):

    X^ = F^T O^ + p~ G,   R^ = L^-T X^,   S_0^ = Gamma G + r~^T O^ + sigma read~^T b R^
    F^ = O^ X^T,   N^ = sigma b R^ X^T,   r~^ = O^ S_0^T,   read~^ = sigma b R^ S_0^T,
    p~^ = X G^T,   b^ = sum over lanes of R^ (Z + sigma (read~ S_0 + N X)),   Z^ = b R^
    N_k^ = b R^ V^T,   F_k^ = O^ V^T,   k~^ = V G^T,   V^ = N_k^T b R^ + F_k^T O^ + k~ G

A kernel may as well form the cotangent of T = L^-1 and take N^ from -T^T T^ T^T: its
terms are those of R^ X^T with X and R^ multiplied out, whose sizes are used here.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.chunk_gate_bars import Bar, gate_bars, times
from scancheck.bounds.chunk_parts import norm_of
from scancheck.bounds.chunk_scores import Matrix, met
from scancheck.bounds.products import Products, Sized, turned
from scancheck.bounds.rank_one_chunks import (
    CarriedState,
    ChunkRun,
    added_errors,
    solved_for,
)
from scancheck.bounds.rules import Rules

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkBars:
    """Cotangents of a chunk's rows, [G, C, K] unless stated."""

    read: Bar
    r: Bar
    p: Bar
    k: Bar | None
    v: Bar  # [G, C, L]
    b: Bar  # [G, C, 1]
    gates: Bar  # of log gates, [G, C, N]
    peak: FloatArray  # of these alone, [G]: what exp(c_t) is still to multiply
    later_peak: FloatArray  # the same of all whose sum the gates are


class _Sum:
    """A sum of products, each of which may be stored on its way."""

    def __init__(self, products: Products) -> None:
        self.products, self.terms = products, list[Bar]()

    def add(self, bar: Bar) -> None:
        """One more term."""
        self.terms.append(bar)

    @property
    def bar(self) -> Bar:
        """The sum, which may be stored once more."""
        products, (first, *others) = self.products, self.terms
        value = sum((term.value for term in others), first.value)
        stored = [products.cast(term.sized) for term in self.terms]
        return Bar(value, products.cast(products.plus(*stored)))


def pull_back_chunk(
    products: Products, rules: Rules, run: ChunkRun, o: Matrix, g: CarriedState
) -> tuple[ChunkBars, CarriedState]:
    """Cotangents of the chunk's rows for O^ [G, C, L] and G, and that of S_0."""
    right, residual_bar, carry = _through_state(products, rules, run, o, g)
    bars = _of_rows(products, run, o, g, right)
    peak = _before_decay(run, o, right, g)
    names = ("read", "r", "p", "k")
    rows = {name: bars[name].bar for name in names if name in bars}
    ends = {"p": _outer(products, _solution(run), _bar(g.matrix))}
    if run.parts.inputs.k is not None:
        ends["k"] = _outer(products, _bar(run.parts.inputs.v), _bar(g.matrix))
    kept = times(products, g.matrix, _bar(run.state.matrix))
    # Both may be held as operands, and what is multiplied in their format is stored.
    kept = Bar(kept.value, products.cast(kept.sized))
    return (
        ChunkBars(
            read=rows["read"],
            r=rows["r"],
            p=rows["p"],
            k=rows.get("k"),
            v=bars["v"].bar,
            b=_of_strength(products, run, residual_bar),
            gates=gate_bars(products, run.parts, rows, ends, kept),
            peak=peak,
            later_peak=peak,
        ),
        carry,
    )


def _bar(x: Matrix) -> Bar:
    return Bar(x.value, x.sized)


def _solution(run: ChunkRun) -> Bar:
    """X, its terms multiplied out."""
    size = np.maximum(run.monomials, np.abs(run.x.value))
    return Bar(run.x.value, Sized(size, run.x.error))


def _outer(
    products: Products, left: Bar, right: Bar, mask: FloatArray | None = None
) -> Bar:
    """left right^T over lanes, where the mask is one; stored and read again twice."""
    value = left.value @ turned(right.value)
    sized = products.product(left.sized, right.sized.turned())
    if mask is not None:
        value, sized = value * mask, sized.times(mask)
    return Bar(value, products.cast(sized, 2))


def _through_state(
    products: Products, rules: Rules, run: ChunkRun, o: Matrix, g: CarriedState
) -> tuple[Bar, Bar, CarriedState]:
    """b R^ and R^ with all their errors, and the cotangent of S_0."""
    parts, inputs, start = run.parts, run.parts.inputs, run.parts.from_start
    read, r, p = (parts.decayed(products, n) for n in ("read", "r", "p"))
    read_value, r_value, p_value = (
        start[n].value * x.value
        for n, x in (("read", inputs.read), ("r", inputs.r), ("p", inputs.p))
    )
    scores, inverse = parts.scores.turned(), parts.inverse.turned()
    # X^ and R^: what the chunk adds, and what G brings with it.
    x_bar = products.plus(products.product(scores.sized, o.sized), g.read(products, p))
    x_value = scores.value @ o.value + p_value @ g.value
    lost = parts.lost_at_end(products, inputs.p)
    x_bar = Sized(np.abs(x_value) + g.through(p_value), x_bar.error + lost)
    value = inverse.value @ x_value
    passed = g.through(inverse.value @ p_value)
    local, monomials = solved_for(products, parts, value, passed, x_bar, turn=True)
    b = inputs.b
    added = added_errors(
        products,
        g.kept(products, parts.gate),
        read,
        norm_of(read_value),
        products.times(b.sized, local),
        (products.product(r.turned(), o.sized),),
    )
    before = (
        parts.whole.value * g.value
        + turned(r_value) @ o.value
        + inputs.sigma * turned(read_value) @ (b.value * value)
    )
    carry = g.moved(
        before,
        turned(parts.transition),
        parts.norm,
        added,
        rules,
        products.peak,
    )
    products.seen(carry.matrix.sized)
    whole = Bar(value, Sized(monomials, local.error + passed))
    return times(products, b, whole), whole, carry


def _before_decay(run: ChunkRun, o: Matrix, right: Bar, g: CarriedState) -> FloatArray:
    """The largest product with X or a cotangent whose exponential comes last, [G].

    exp(c_t) for what is read, exp(-c_j) for what is written; times the row each is that
    factor's cotangent. A whole chunk's sum meets G.
    """
    parts, inputs = run.parts, run.parts.inputs
    peak = np.zeros(len(o.value))
    if not parts.is_factored:
        return peak
    inner = parts.before_decay(run.x.sized.top)
    last = g.matrix.sized.top
    late = parts.whole.value * last
    found = [(inner * last).sum(2, keepdims=True)]
    for name, row, bar in (("r", inputs.r, o), ("read", inputs.read, right)):
        top = bar.sized.top
        read = top @ turned(inner)
        found += [read, row.sized.top * read]
        late = late + turned(parts.from_start[name].value * row.sized.top) @ top
    found.append(late)
    written = [(inputs.p, run.x)]
    if inputs.k is not None:
        written.append((inputs.k, inputs.v))
    for row, x in written:
        met_late = x.sized.top @ turned(late)
        found += [met_late, row.sized.top * met_late]
    for sizes in found:
        peak = np.maximum(peak, sizes.max((1, 2), initial=0.0))
    return peak


def _of_rows(
    products: Products, run: ChunkRun, o: Matrix, g: CarriedState, right: Bar
) -> dict[str, _Sum]:
    """Cotangents of read, r, p, k and v from b R^ = `right` and O^."""
    parts, inputs = run.parts, run.parts.inputs
    given, state, last = _bar(o), _bar(run.state.matrix), _bar(g.matrix)
    x, v = _solution(run), _bar(inputs.v)
    signed = Bar(inputs.sigma * right.value, right.sized)
    low, full = np.tri(parts.steps, k=-1), np.tri(parts.steps)
    bars = {name: _Sum(products) for name in ("read", "r", "p", "v")}

    def end(name: str, left: Bar, other: Bar) -> None:
        """The decayed row's cotangent, and through its decay the row's."""
        decay = Matrix(*parts.from_start["p" if name == "k" else name])
        value, sized = times(products, decay, _outer(products, left, other))
        if name in "pk" and parts.is_factored:
            # exp(c_C) G, below the normal range, meets exp(-c_j).
            off = left.sized.top.sum(2, keepdims=True) * turned(parts.decays.inverse)
            sized = Sized(sized.size, sized.error + products.lost * off)
        bars[name].add(Bar(value, sized))

    def meet(bar: Bar, row: str, column: str) -> None:
        """Cotangents of scores, given on to their rows and columns."""
        weights = parts.by_read if row == "read" else parts.by_r
        y, z = getattr(inputs, column), getattr(inputs, row)
        bars[row].add(Bar(*met(products, weights, bar.matrix, bar.sized, y)))
        bar, weights = bar.turned(), weights.turned()
        bars[column].add(Bar(*met(products, weights, bar.matrix, bar.sized, z)))

    end("read", signed, state)
    end("r", given, state)
    end("p", x, last)
    meet(_outer(products, signed, x, low), "read", "p")
    meet(_outer(products, given, x, full), "r", "p")
    if inputs.k is None:
        bars["v"].add(right)
        return bars
    assert parts.lower_k is not None and parts.scores_k is not None
    bars["k"] = _Sum(products)
    end("k", v, last)
    meet(_outer(products, right, v, low), "read", "k")
    meet(_outer(products, given, v, full), "r", "k")
    k = parts.decayed(products, "k")
    for part, bar in ((parts.lower_k, right), (parts.scores_k, given)):
        part = part.turned()
        sized = products.product(part.sized, bar.sized)
        bars["v"].add(Bar(part.value @ bar.value, sized))
    value = parts.from_start["p"].value * inputs.k.value
    size, error = products.product(k, last.sized)
    error = error + parts.lost_at_end(products, inputs.k)
    bars["v"].add(Bar(value @ g.value, Sized(size, error)))
    return bars


def _of_strength(products: Products, run: ChunkRun, bar: Bar) -> Bar:
    """b^ from R^ and all that b multiplies."""
    parts, inputs, s = run.parts, run.parts.inputs, run.state
    rows = parts.from_start["read"].value * inputs.read.value
    z = inputs.v.value
    if parts.lower_k is not None:
        z = parts.lower_k.value @ z
    value = z + inputs.sigma * (rows @ s.value + parts.lower.value @ run.x.value)
    passed = Sized(np.zeros_like(z), s.through(rows))
    lower = products.product(parts.lower.sized, _solution(run).sized)
    residual = Bar(value, products.plus(run.residual, passed, lower))
    both = times(products, Matrix(bar.value, bar.sized.error), residual)
    size = bar.sized.size * residual.sized.size
    terms = Sized(*(x.sum(-1, keepdims=True) for x in (size, both.sized.error)))
    total = products.rounded(terms, z.shape[-1])
    return Bar(both.value.sum(-1, keepdims=True), products.cast(total))
