"""Gate gradients by a reverse cumulative sum, without the decay (numerics 2.9).

    dl_t = Sbar_T S_T + sum over s >= t of (r_s obar_s S_s - G_s x_s)

telescopes to w_t G_t S_{t-1}, but each dl_t has the errors of all later steps: in a sum
of any order every term passes at most as many additions as there are terms. Gated
linear attention forms its gate gradient so, for it needs no state but the last one.

A kernel in chunks may have a chunk's part as the sum over the whole chunk less a
running sum from its start. Terms of earlier tokens cancel then, as the same numbers are
in both, but not what adding them up rounds. So their sizes count, which a walk from the
end meets too late: they are added up in a pass of their own.
"""

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.error_number import ErrorNumber

FloatArray = NDArray[np.float64]


class ChunkTerms:
    """Sizes of all terms of each chunk, of a first pass, for a second one."""

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk
        self.complete = False
        self._sums: dict[int, FloatArray] = {}  # [G, K, L]

    def add(self, terms: FloatArray, first: int) -> None:
        """Sizes [G, T, K, L] of terms of the tokens from `first` on."""
        chunks = self._chunks(first, terms.shape[1])
        for chunk in np.unique(chunks):
            here = terms[:, chunks == chunk].sum(1)
            self._sums[int(chunk)] = self._sums.get(int(chunk), 0.0) + here

    def of(self, first: int, steps: int) -> FloatArray:
        """The sums of the chunks of the tokens from `first` on, [G, T, K, L]."""
        return np.stack([self._sums[int(c)] for c in self._chunks(first, steps)], 1)

    def _chunks(self, first: int, steps: int) -> NDArray[np.intp]:
        return np.maximum(np.arange(first, first + steps), 0) // self.chunk


def reverse_sums(
    read: ErrorNumber,
    written: ErrorNumber,
    later: ErrorNumber,
    steps_after: int,
    beside: FloatArray | None = None,
    more_steps: int = 0,
) -> tuple[ErrorNumber, ErrorNumber]:
    """The gate gradients of a tile [G, T, K, L], and the sums from its first step on.

    `read` is r obar S and `written` G x of its steps; `later` [G, K, L] sums the terms
    of the `steps_after` steps after the tile. Sums that are handed on have not counted
    their additions yet. `beside` [G, T, K, L] is the size of further terms, of
    `more_steps` steps, which are added up with them and cancel.
    """
    rules = read.rules
    value, m, e = (
        _from_the_end(x + sign * y, rest)
        for x, sign, y, rest in zip(
            read.components[:3],
            (-1.0, 1.0, 1.0),
            written.components[:3],
            later.components[:3],
            strict=True,
        )
    )
    peak = np.maximum(read.peak, written.peak)
    peak = np.maximum(_top_from_the_end(peak), later.peak[:, None])
    handed_on = ErrorNumber(rules, value[:, 0], m[:, 0], e[:, 0], peak[:, 0])
    steps = np.arange(read.shape[1], 0, -1.0) + steps_after
    # Two terms a step and that of the final state.
    additions = (2.0 * (steps + more_steps))[:, None, None]
    growth = np.expm1(np.minimum(additions * np.log1p(rules.u), 690.0))
    size = m + e if beside is None else m + e + beside
    e = e + growth * size + (1.0 + growth) * additions * rules.add_eta
    peak = np.maximum(peak, m + e if beside is None else size + e)
    return ErrorNumber(rules, value, m, e, peak), handed_on


def _from_the_end(x: FloatArray, later: FloatArray) -> FloatArray:
    """Sums of x over this step and all later ones."""
    return np.cumsum(x[:, ::-1], axis=1)[:, ::-1] + later[:, None]


def _top_from_the_end(x: FloatArray) -> FloatArray:
    """The largest entry of this step and all later ones; NaN wins."""
    return np.maximum.accumulate(x[:, ::-1], axis=1)[:, ::-1]
