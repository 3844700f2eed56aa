"""The decay matrix of a chunk, w_tj over the tokens j+1..t, in three ways.

Each gives w_tj [..., C, C], 0 above the diagonal and 1 on it, and w_t0 [..., C, 1], the
decay from the chunk's start, from decays or log decays [..., C, 1]:

    products     w_tj = w_t w_{t-1,j}                     one product a token, from j on
    segment sums w_tj = exp(s_tj), s_tj = l_t + s_{t-1,j}   a running sum for every j
    differences  w_tj = exp(c_t - c_j), c_t = l_1 + .. + l_t

Segment sums are those of Mamba-2's minimal listing (Dao and Gu, "Transformers are
SSMs", 2024, listing 1), which are there so that -infinity is never subtracted from
itself.
"""

import numpy as np

from scancheck.kernels.models.arithmetic import Array
from scancheck.kernels.models.chunk_frame import lower_triangle
from scancheck.kernels.models.tape import Tape, Variable


def of_products(tape: Tape, decay: Variable) -> tuple[Variable, Variable]:
    """w_tj and w_t0 by products of decays."""
    mul = tape.arithmetic.mul
    w = _time_first(decay.value)  # [C, ..., 1]
    # Column 0 is the chunk's start, column j the token j.
    columns = _columns(w, diagonal=1.0)
    for t in range(len(w)):
        columns[t + 1, ..., : t + 1] = mul(w[t], columns[t, ..., : t + 1])

    def pull(bar: Array) -> None:
        bars, own = np.moveaxis(bar, -2, 0), np.empty_like(w)
        later = np.zeros_like(columns[0])
        for t in reversed(range(len(w))):
            # The cotangent of w_t and of row t - 1, through row t.
            later = tape.arithmetic.add(bars[t + 1], later)
            seen = mul(later[..., : t + 1], columns[t, ..., : t + 1])
            own[t] = tape.summed(seen)[..., None]
            later = np.where(np.arange(later.shape[-1]) <= t, mul(w[t], later), 0.0)
            later = later.astype(w.dtype)
        tape.add_to(decay, np.moveaxis(own, 0, -2))

    return _split(tape, tape.record(np.moveaxis(columns, 0, -2), pull))


def of_segment_sums(tape: Tape, log_decay: Variable) -> tuple[Variable, Variable]:
    """w_tj and w_t0 by exponentials of running sums of their own."""
    add = tape.arithmetic.add
    logs = _time_first(log_decay.value)
    columns = _columns(logs, diagonal=0.0)
    for t in range(len(logs)):
        columns[t + 1, ..., : t + 1] = add(columns[t, ..., : t + 1], logs[t])

    def pull(bar: Array) -> None:
        bars, own = np.moveaxis(bar, -2, 0), np.empty_like(logs)
        later = np.zeros_like(columns[0])
        for t in reversed(range(len(logs))):
            later = add(bars[t + 1], later)
            own[t] = tape.summed(later[..., : t + 1])[..., None]
        tape.add_to(log_decay, np.moveaxis(own, 0, -2))

    sums = tape.record(np.moveaxis(columns, 0, -2), pull)
    mask = lower_triangle(len(columns), strict=False)
    return _split(tape, tape.masked_exp(mask, sums))


def of_differences(tape: Tape, log_decay: Variable) -> tuple[Variable, Variable]:
    """w_tj and w_t0 by exponentials of differences of one running sum."""
    sums = tape.running_sums(log_decay)
    mask = lower_triangle(sums.shape[-2], strict=False)
    pairs = tape.masked_exp(mask, tape.sub(sums, tape.swapped(sums)))
    return pairs, tape.exp(sums)


def _time_first(x: Array) -> Array:
    return np.moveaxis(x, -2, 0)


def _columns(x: Array, diagonal: float) -> Array:
    """[C + 1, ..., C + 1] with the diagonal set, zero elsewhere."""
    size, *rest = x.shape
    columns = np.zeros((size + 1, *rest[:-1], size + 1), x.dtype)
    for t in range(size + 1):
        columns[t, ..., t] = diagonal
    return columns


def _split(tape: Tape, columns: Variable) -> tuple[Variable, Variable]:
    """w_tj and w_t0 from the matrix that has the start as its first row and column."""
    rest, first = slice(1, None), slice(0, 1)
    return (
        tape.part(columns, (..., rest, rest)),
        tape.part(columns, (..., rest, first)),
    )
