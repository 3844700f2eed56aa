"""Decays inside a chunk: between two tokens, from its start, and to its end.

Inside each chunk, positions 1..C, with w_tj the decay over the tokens j+1..t, c_t the
running sum of log decays and every operation rounded once:

    scores    x_t^T diag(w_tj) y_j    for j <= t, or j < t; 0 elsewhere
    read      x_t^T diag(w_t0) S      what a token reads of the state S carried in
    moved     diag(w_C0) S + sum over j of (diag(w_Cj) y_j) v_j^T, the state carried on

A reader of the state before its update has w_{t-1,j} and w_{t-1,0} instead.
With one decay per head the scores are (X Y^T) o W, the masked decay matrix of Mamba-2
(Dao and Gu, "Transformers are SSMs", 2024, section 6); with one per key they are the
factored or two-level products of Yang et al., "Gated Linear Attention Transformers with
Hardware-Efficient Training" (2024), section 4.3.
"""

from dataclasses import dataclass

import numpy as np

from scancheck.kernels.models.chunk_frame import lower_triangle
from scancheck.kernels.models.matrix_products import MatrixProducts
from scancheck.kernels.models.tape import Tape, Variable

Writes = tuple[tuple[Variable, Variable], ...]  # what `kept` gives, and one chunk's v


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkDecays:
    """The decays of all chunks, [chunks, ..., C, K or 1]; here none at all."""

    tape: Tape
    products: MatrixProducts

    def scores(
        self, x: Variable, y: Variable, *, strict: bool = False, before: bool = False
    ) -> Variable:
        """x_t^T diag(w_tj) y_j, [..., C, C]; `before`: x_t^T diag(w_{t-1,j}) y_j."""
        scores = self.tape.matmul(self.products, x, self.tape.swapped(y))
        mask = lower_triangle(x.shape[-2], strict=strict or before)
        return self.tape.kept_where(mask, scores)

    def reads(self, x: Variable, *, before: bool = False) -> Variable:
        """diag(w_t0) x_t of all chunks, as far as it is formed without the state."""
        return x

    def read(self, chunk: int, reads: Variable, state: Variable) -> Variable:
        """What the tokens of a chunk read of its state, [..., C, L]."""
        return self.tape.matmul(self.products, self.tape.part(reads, chunk), state)

    def kept(self, y: Variable) -> Variable:
        """diag(w_Cj) y_j of all chunks, [..., K, C]."""
        return self.tape.swapped(y)

    def moved(self, chunk: int, state: Variable, writes: Writes) -> Variable:
        """The state after a chunk from the one before it, [..., K, L]."""
        for kept, values in writes:
            left = self.tape.part(kept, chunk)
            written = self.tape.matmul(self.products, left, values)
            state = self.tape.add(state, written)
        return state


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadDecays(ChunkDecays):
    """One decay per head: products of Q and K meet it, and products of Q and S."""

    pairs: Variable  # w_tj, [..., C, C], 0 above the diagonal
    start: Variable  # w_t0, [..., C, 1]

    def scores(
        self, x: Variable, y: Variable, *, strict: bool = False, before: bool = False
    ) -> Variable:
        """(X Y^T) o W."""
        tape = self.tape
        scores = tape.matmul(self.products, x, tape.swapped(y))
        mask = lower_triangle(x.shape[-2], strict=strict)
        return tape.kept_where(mask, tape.mul(scores, self.pairs))

    def read(self, chunk: int, reads: Variable, state: Variable) -> Variable:
        """w_t0 (x_t^T S)."""
        read = ChunkDecays.read(self, chunk, reads, state)
        return self.tape.mul(self.tape.part(self.start, chunk), read)

    def kept(self, y: Variable) -> Variable:
        """w_Cj y_j; the last row of W is w_Cj."""
        end = rows_of(self.tape, self.pairs, slice(-1, None))
        return self.tape.mul(self.tape.swapped(y), end)

    def moved(self, chunk: int, state: Variable, writes: Writes) -> Variable:
        """w_C0 S, then one product for each write."""
        total = rows_of(self.tape, self.start, slice(-1, None))
        state = self.tape.mul(self.tape.part(total, chunk), state)
        return ChunkDecays.moved(self, chunk, state, writes)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDecays(ChunkDecays):
    """One decay per key, by differences: inside blocks, and across them by two factors.

    In a block w_tj = exp(c_t - c_j), each pair and key on its own. Between blocks, with
    `a` the sum that the later block's first reader has, x_t exp(c_t - a) meets
    y_j exp(a - c_j): no exponent is positive where gates are not. One block of C
    tokens is the plain form.
    """

    sums: Variable  # c_t
    earlier: Variable  # c_{t-1}
    block: int

    def scores(
        self, x: Variable, y: Variable, *, strict: bool = False, before: bool = False
    ) -> Variable:
        """Block rows, each with its past as one product and itself pair by pair."""
        tape, length = self.tape, x.shape[-2]
        reader = self.earlier if before else self.sums
        rows = []
        for first in range(0, length, self.block):
            last = min(first + self.block, length)
            parts = []
            here, past = slice(first, last), slice(0, first)
            if first:
                parts.append(self._across(x, y, reader, here, past))
            parts.append(self._inside(x, y, reader, here, strict=strict or before))
            if last < length:
                shape = (*x.shape[:-2], last - first, length - last)
                parts.append(Variable(np.zeros(shape, x.value.dtype)))
            rows.append(tape.joined(parts, -1))
        return tape.joined(rows, -2)

    def _across(
        self, x: Variable, y: Variable, reader: Variable, here: slice, past: slice
    ) -> Variable:
        tape = self.tape
        anchor = rows_of(tape, reader, slice(here.start, here.start + 1))
        since = tape.sub(rows_of(tape, reader, here), anchor)
        until = tape.sub(anchor, rows_of(tape, self.sums, past))
        left = tape.mul(rows_of(tape, x, here), tape.exp(since))
        right = tape.mul(rows_of(tape, y, past), tape.exp(until))
        return tape.matmul(self.products, left, tape.swapped(right))

    def _inside(
        self, x: Variable, y: Variable, reader: Variable, here: slice, *, strict: bool
    ) -> Variable:
        tape = self.tape

        def later(z: Variable) -> Variable:
            return tape.part(z, (..., here, None, slice(None)))

        def sooner(z: Variable) -> Variable:
            return tape.part(z, (..., None, here, slice(None)))

        mask = lower_triangle(here.stop - here.start, strict=strict)[..., None]
        decay = tape.masked_exp(mask, tape.sub(later(reader), sooner(self.sums)))
        pairs = tape.mul(tape.mul(later(x), sooner(y)), decay)
        return tape.sum(pairs, -1)

    def reads(self, x: Variable, *, before: bool = False) -> Variable:
        """x_t exp(c_t)."""
        return self.tape.mul(x, self.tape.exp(self.earlier if before else self.sums))

    def kept(self, y: Variable) -> Variable:
        """y_j exp(c_C - c_j)."""
        last = rows_of(self.tape, self.sums, slice(-1, None))
        left = self.tape.exp(self.tape.sub(last, self.sums))
        return self.tape.swapped(self.tape.mul(y, left))

    def moved(self, chunk: int, state: Variable, writes: Writes) -> Variable:
        """exp(c_C) S, then one product for each write."""
        last = rows_of(self.tape, self.sums, slice(-1, None))
        total = self.tape.exp(self.tape.part(last, chunk))
        state = self.tape.mul(self.tape.swapped(total), state)
        return ChunkDecays.moved(self, chunk, state, writes)


@dataclass(frozen=True, slots=True, kw_only=True)
class FactoredDecays(ChunkDecays):
    """exp(c_t) times exp(-c_j), per head or per key, with no difference at all."""

    sums: Variable  # c_t
    earlier: Variable  # c_{t-1}

    def scores(
        self, x: Variable, y: Variable, *, strict: bool = False, before: bool = False
    ) -> Variable:
        """(x_t exp(c_t))^T (exp(-c_j) y_j)."""
        reads = self.reads(x, before=before)
        scores = self.tape.matmul(self.products, reads, self.kept(y))
        mask = lower_triangle(x.shape[-2], strict=strict or before)
        return self.tape.kept_where(mask, scores)

    def reads(self, x: Variable, *, before: bool = False) -> Variable:
        """x_t exp(c_t)."""
        return self.tape.mul(x, self.tape.exp(self.earlier if before else self.sums))

    def kept(self, y: Variable) -> Variable:
        """y_j exp(-c_j), still to be multiplied by exp(c_C)."""
        grown = self.tape.exp(self.tape.neg(self.sums))
        return self.tape.swapped(self.tape.mul(y, grown))

    def moved(self, chunk: int, state: Variable, writes: Writes) -> Variable:
        """exp(c_C) S, then exp(c_C) times the product of each write."""
        tape = self.tape
        last = rows_of(tape, self.sums, slice(-1, None))
        total = tape.swapped(tape.exp(tape.part(last, chunk)))
        state = tape.mul(total, state)
        for kept, values in writes:
            written = tape.matmul(self.products, tape.part(kept, chunk), values)
            state = tape.add(state, tape.mul(total, written))
        return state


def rows_of(tape: Tape, x: Variable, rows: slice) -> Variable:
    """Some rows of all chunks' matrices."""
    return tape.part(x, (..., rows, slice(None)))
