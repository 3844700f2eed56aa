"""What a chunk of a rank-one recurrence is made of before any state is known.

With gates and their decays as `chunk_decays` has them, and x~ for decayed rows,

    L = I - sigma b N,   N = masked(read p^T),  F = masked(r p^T)
    X = L^-1 b (Z + sigma read~ S_0)
    O = r~ S_0 + F X + (F_k V),    S_C = Gamma S_0 + p~^T X + (k~^T V)

A delta rule has sigma = -1, b = beta, columns p = k and Z = V, so that X = beta times
the error of what the state says; any other transition (w + p q^T) has sigma = 1, b = 1,
Z = N_k V, N_k = masked(read k^T), and the terms in brackets. `read` meets the decayed
state for a delta rule and the one before its decay otherwise.

Source: Yang et al., "Parallelizing Linear Transformers with the Delta Rule" (2024), and
"Gated Delta Networks" (2024), section 3.3: the WY and UT forms.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.chunk_decays import ChunkDecays, Decay, decays_of
from scancheck.bounds.chunk_inverse import Inverse, inverse_of
from scancheck.bounds.chunk_scores import Matrix, Weights, scores_of
from scancheck.bounds.error_number import ErrorNumber
from scancheck.bounds.products import Products, Sized, exactly, turned
from scancheck.bounds.rules import Rules
from scancheck.ops.normal_form import Lowered
from scancheck.oracles.transition_norm import LEAST_ABOVE

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkInputs:
    """The rows of a chunk; [G, C, K] unless stated."""

    sigma: float
    read: Matrix
    p: Matrix
    r: Matrix
    k: Matrix | None
    v: Matrix  # [G, C, L]
    b: Matrix  # [G, C, 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkParts:
    """A chunk without its state."""

    inputs: ChunkInputs
    decays: ChunkDecays
    steps: int
    reads_decayed: bool  # whether `read` meets the state after its decay
    by_read: Weights  # decays to where `read` reads
    by_r: Weights  # decays to where r reads
    lower: Matrix  # N, strictly lower [G, C, C]
    scores: Matrix  # F
    lower_k: Matrix | None
    scores_k: Matrix | None
    inverse: Inverse  # T
    from_start: dict[str, Decay]  # of read~, r~ and p~ (to the end), [G, C, N]
    whole: Decay  # Gamma, [G, N, 1]
    moves: FloatArray  # sigma T b read~, [G, C, K]: X by S_0
    reads: FloatArray  # r~ + F moves: O by S_0
    transition: FloatArray  # Gamma + p~^T moves, [G, K, K]
    norm: FloatArray  # its 2-norm, [G]
    p_norm: FloatArray  # that of p~

    @property
    def gate(self) -> Sized:
        """Gamma as a kernel forms it."""
        return Sized(np.abs(self.whole.value), self.whole.error)

    def decayed(self, products: Products, name: str) -> Sized:
        """read~, r~, p~ or k~ as a kernel forms it."""
        rows: Matrix | None = getattr(self.inputs, name)
        assert rows is not None
        decay = self.from_start["p" if name == "k" else name]
        formed = Sized(np.abs(decay.value), decay.error)
        if name in "pk" and self.is_factored:
            grown = _rows(self.decays.inverse)
            products.seen(exactly(grown))
            products.seen(products.cast(rows.sized.times(grown)))
        return products.times(rows.sized, formed)

    def lost_at_end(self, products: Products, row: Matrix) -> FloatArray:
        """What exp(c_C) G has lost below the normal range when it meets the row.

        The row is p or k, times exp(-c_j) where that is formed; summed over keys,
        [G, C, 1].
        """
        if not self.is_factored:
            return np.zeros((*row.value.shape[:2], 1))
        met = row.sized.top * _rows(self.decays.inverse)
        lost: FloatArray = products.lost * met.sum(2, keepdims=True)
        return lost

    @property
    def is_factored(self) -> bool:
        """Whether exp(-c) is formed, and is not one everywhere."""
        return bool((self.decays.inverse != 1.0).any())

    def before_decay(self, x: FloatArray) -> FloatArray:
        """The sums that exp(c_t) multiplies: sizes of exp(-c_j) p_j X_j, [G, K, L].

        x [G, C, L]: what the columns p are multiplied by; k by v.
        """
        grown = _rows(self.decays.inverse)
        found: FloatArray = turned(self.inputs.p.sized.top * grown) @ x
        if self.inputs.k is not None:
            k, v = self.inputs.k.sized.top, self.inputs.v.sized.top
            found = found + turned(k * grown) @ v
        return found


def _rows(x: FloatArray) -> FloatArray:
    """[G, N, C] -> [G, C, N]."""
    return np.swapaxes(x, 1, 2)


def inputs_of(lowered: Lowered, rules: Rules) -> ChunkInputs:
    """The rows of a lowered chunk.

    Those of a delta rule are k and beta; where an op gives only beta k and w k they are
    taken apart.
    """
    r, v = _matrix(lowered.r), Matrix(lowered.v.value, lowered.v.error)
    if rules.drive_cast is not None:
        stored = lowered.v.stored(rules.drive_cast)
        v = Matrix(stored.value, stored.error)
    p, q = _matrix(lowered.p), _matrix(lowered.q)
    if not lowered.erases_decayed:
        one = np.ones((*p.value.shape[:2], 1))
        return ChunkInputs(
            sigma=1.0, read=q, p=p, r=r, k=_matrix(lowered.k), v=v,
            b=Matrix(one, np.zeros_like(one)),
        )  # fmt: skip
    if lowered.key is None:
        k, b = _taken_apart(lowered, p, q)
    else:
        k = _matrix(lowered.key)
        b = _matrix(lowered.strength)
    return ChunkInputs(
        sigma=-1.0, read=k, p=k, r=r, k=None, v=v, b=b
    )  # fmt: skip


def _taken_apart(lowered: Lowered, p: Matrix, q: Matrix) -> tuple[Matrix, Matrix]:
    """k [G, C, K] and beta [G, C, 1] from p = -beta k and q = w k.

    A key whose decay is zero reads nothing: k is taken to be -p there, and beta 1.
    """
    w = np.broadcast_to(lowered.w.value[..., 0], q.value.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        key = np.where(w > 0.0, q.value / w, -p.value)
        off = np.where(w > 0.0, q.error / w, p.error)
        square = (key * key).sum(-1, keepdims=True)
        inner = -(p.value * key).sum(-1, keepdims=True)
        b = np.where(square > 0.0, inner / square, 0.0)
        length = np.sqrt((p.error * p.error).sum(-1, keepdims=True))
        b_off = np.where(square > 0.0, length / np.sqrt(square), 0.0)
        # Both w k and beta k hold the error of k.
        off = np.fmin(off, np.where(b != 0.0, p.error / np.abs(b), np.inf))
    return Matrix(key, off), Matrix(b, b_off)


def _matrix(number: ErrorNumber) -> Matrix:
    """[G, C, K, 1] without its last axis."""
    return Matrix(number.value[..., 0], number.error[..., 0])


def parts_of(
    products: Products, rules: Rules, form: str, lowered: Lowered
) -> ChunkParts:
    """All of a chunk that does not depend on its state."""
    inputs = inputs_of(lowered, rules)
    decays = decays_of(rules, form, lowered.w, lowered.log_w)
    steps = inputs.v.value.shape[1]
    places = np.arange(1, steps + 1)
    # A delta rule reads the decayed state.
    read_places = places if lowered.erases_decayed else places - 1
    read, p, r, k = inputs.read, inputs.p, inputs.r, inputs.k

    by_read, by_r = (
        Weights(
            decays.at(at, places),
            decays.grown[:, None, :],
            _rows(decays.inverse),
        )
        for at in (read_places, places)
    )
    lower = scores_of(products, by_read, read, p, 1)
    scores = scores_of(products, by_r, r, p, 0)
    lower_k = scores_k = None
    if k is not None:
        lower_k = scores_of(products, by_read, read, k, 1)
        scores_k = scores_of(products, by_r, r, k, 0)
    b = inputs.b.sized
    scaled = products.times(b, lower.sized)
    eye = np.eye(steps)
    inverse = inverse_of(
        products,
        rules,
        eye - inputs.sigma * inputs.b.value * lower.value,
        scaled.error,
    )
    zero = np.zeros(1, dtype=int)
    last = np.full(1, steps)
    starts = {
        "read": _column(decays.at(read_places, zero)),
        "r": _column(decays.at(places, zero)),
        "p": Decay(*(x[:, :, 0].swapaxes(1, 2) for x in decays.at(last, places))),
    }
    whole = Decay(*(x[..., 0] for x in decays.at(last, zero)))
    scaled_read = inputs.b.value * starts["read"].value * read.value
    moves = inputs.sigma * (inverse.value @ scaled_read)
    columns = starts["p"].value * p.value
    transition = turned(columns) @ moves
    keys = np.arange(p.value.shape[2])
    transition[:, keys, keys] += whole.value[..., 0]
    return ChunkParts(
        inputs=inputs,
        decays=decays,
        steps=steps,
        reads_decayed=lowered.erases_decayed,
        by_read=by_read,
        by_r=by_r,
        lower=lower,
        scores=scores,
        lower_k=lower_k,
        scores_k=scores_k,
        inverse=inverse,
        from_start=starts,
        whole=whole,
        moves=moves,
        reads=starts["r"].value * r.value + scores.value @ moves,
        transition=transition,
        norm=norm_of(transition),
        p_norm=norm_of(columns),
    )


def _column(decay: Decay) -> Decay:
    """Decays to places [G, N, C, 1] as rows [G, C, N]."""
    return Decay(*(_rows(x[..., 0]) for x in decay))


def norm_of(matrices: FloatArray) -> FloatArray:
    """2-norms [G] of [G, M, N] from above; infinite where an entry is not finite."""
    finite = np.asarray(np.isfinite(matrices).all(axis=(1, 2)))
    safe = np.where(finite[:, None, None], matrices, 0.0)
    norms = np.linalg.norm(safe, ord=2, axis=(1, 2)) * (1.0 + LEAST_ABOVE)
    return np.where(finite, norms, np.inf)
