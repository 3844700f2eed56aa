"""Error bounds of chunked rank-one kernels as a System of the engine.

Chunks start with the sequence, as those of kernels do; the last one may be shorter. The
engine's tiles are whole chunks (`solve` is told how many steps those have).
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.chunk_decays import FORMS
from scancheck.bounds.chunk_gate_bars import Bar
from scancheck.bounds.chunk_parts import inputs_of, parts_of
from scancheck.bounds.chunk_scores import Matrix
from scancheck.bounds.error_number import ErrorNumber
from scancheck.bounds.error_system import ErrorSystem
from scancheck.bounds.products import Products, Sized
from scancheck.bounds.rank_one_chunks import CarriedState, ChunkRun, carried, run_chunk
from scancheck.bounds.rank_one_chunks_back import ChunkBars, pull_back_chunk
from scancheck.bounds.rules import Rules
from scancheck.errors import CaseInvalid
from scancheck.ops.normal_form import Cotangents, Lowered

FloatArray = NDArray[np.float64]

NO_DECAY = 1e-200  # what decays so leaves nothing, also in fp64


class RankOneChunkSystem(ErrorSystem):
    """Runs ops over error numbers, the recurrence chunk by chunk.

    Raises CaseInvalid for a contract that is not of plain chunks carried one after
    another, and for a log form that a rank-one transition has not.
    """

    alike_when_kept = True

    def __init__(self, rules: Rules, log: str, op: str) -> None:
        super().__init__(rules)
        structure = rules.structure
        assert structure.chunk is not None
        if structure.carry != "sequential":
            raise CaseInvalid(
                "contract structure: expected chunk(C, inner, sequential) beside a "
                "rank-one transition, whose chunks are carried one after another; got "
                f"carry {structure.carry}"
            )
        if rules.comp != "none":
            raise CaseInvalid(
                f"contract comp: expected none beside a rank-one transition; got "
                f"{rules.comp}"
            )
        if log not in FORMS:
            raise CaseInvalid(
                f"contract log: expected one of {', '.join(FORMS)} for {op}, whose "
                f"transition is not diagonal; got {log}"
            )
        self.log, self.op, self.chunk = log, op, structure.chunk
        # Of gates summed in reverse over all later chunks.
        self.later: FloatArray = np.zeros((2, 1, 1, 1))  # sizes and errors
        self.later_steps = 0
        self.later_peak: FloatArray = np.zeros(1)

    def begin(self, state: ErrorNumber) -> Any:
        """The state that the first chunk finds, stored as those between chunks are."""
        if self.rules.state_u > 0.0:
            state = state.stored(self.rules.state_store)
        return carried(
            np.array(state.value),
            state.error,
            np.max(state.peak, (1, 2), initial=0.0),
        )

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[ErrorNumber, Any, Any]:
        """o [G, T, L], the state after the tile, and each chunk's run when `keep`."""
        self._check(lowered, start)
        groups, _, lanes = state.value.shape
        products = Products(self.rules, groups)
        products.peak = state.peak
        values, errors, peaks = [np.zeros((groups, 0, lanes))], [], []
        errors, peaks = [values[0]], [values[0]]
        runs: list[ChunkRun] = []
        for part in self._chunks(lowered):
            parts = parts_of(products, self.rules, self.log, part)
            o, state, run = run_chunk(products, self.rules, parts, state)
            values.append(o.value)
            errors.append(o.error)
            peak = np.broadcast_to(state.peak[:, None, None], o.value.shape)
            peaks.append(peak)
            if keep:
                runs.append(run)
        value = np.concatenate(values, 1)
        out = ErrorNumber(
            self.rules,
            value,
            np.abs(value),
            np.concatenate(errors, 1),
            np.concatenate(peaks, 1),
        )
        out.terms = max(1, state.value.shape[1])
        return out, state, runs if keep else None

    def _check(self, lowered: Lowered, start: int) -> None:
        """Raises CaseInvalid for a log form without log gates."""
        assert start % self.chunk == 0
        if lowered.z is not None or lowered.reads_before:
            raise NotImplementedError(
                "expected no value-side decay and a read after the update beside a "
                "rank-one transition in chunks"
            )
        if self.log != "none" and lowered.log_w is None:
            raise CaseInvalid(
                f"contract log={self.log}: expected log gates, which {self.op} has not "
                "here; of the log forms only none takes other decays"
            )

    def _chunks(self, lowered: Lowered) -> list[Lowered]:
        """The chunks of a tile."""
        steps = lowered.v.shape[1]
        return [
            _part(lowered, slice(at, min(at + self.chunk, steps)))
            for at in range(0, steps, self.chunk)
        ]

    def end(self, state: Any, total: int) -> ErrorNumber:
        """The final state, stored in the state's format."""
        return self._number(state).stored(self.rules.state_store)

    def _number(self, state: CarriedState) -> ErrorNumber:
        value = state.value
        peak = np.broadcast_to(state.peak[:, None, None], value.shape)
        return ErrorNumber(self.rules, value, np.abs(value), state.error, peak)

    def begin_adjoint(self, state: ErrorNumber) -> Any:
        """The cotangent of the final state."""
        self.later, self.later_steps = np.zeros((2, 1, 1, 1)), 0
        self.later_peak = np.zeros(1)
        return self.begin(state)

    def adjoint(
        self,
        lowered: Lowered,
        states: list[ChunkRun],
        obar: ErrorNumber,
        carry: Any,
        start: int,
        total: int,
    ) -> tuple[Cotangents, Any]:
        """Cotangents of the tile, and that of the state before it."""
        products = Products(self.rules, len(carry.value))
        products.peak = carry.peak
        found: list[ChunkBars] = []
        peaks: list[FloatArray] = []
        for index in reversed(range(len(states))):
            span = slice(
                index * self.chunk, index * self.chunk + states[index].parts.steps
            )
            bar = Matrix(obar.value[:, span], obar.error[:, span])
            products.peak = np.maximum(products.peak, states[index].state.peak)
            bars, carry = pull_back_chunk(
                products, self.rules, states[index], bar, carry
            )
            found.append(self._with_later(products, bars))
            peaks.append(products.peak)
        return self._joined(lowered, found[::-1], peaks[::-1]), carry

    def end_adjoint(self, carry: Any) -> ErrorNumber:
        """The cotangent of the initial state."""
        return self._number(carry)

    def _with_later(self, products: Products, bars: ChunkBars) -> ChunkBars:
        """The cotangents with those of gates as sums over all later chunks."""
        if self.rules.gate_gradient == "direct":
            return bars
        value, (size, error) = bars.gates
        later, self.later = self.later, self.later + np.stack([size, error])[:, :, :1]
        self.later_steps += value.shape[1]
        self.later_peak = np.maximum(self.later_peak, bars.peak)
        sized = added = Sized(size + later[0], error + later[1])
        additions = 4 * self.later_steps + 4
        if self.rules.gate_gradient == "chunk_sums":
            # A chunk's first gate has all its terms, which are added up twice for each.
            added = Sized(*(np.broadcast_to(x[:, :1], x.shape) for x in sized))
            additions += 8 * value.shape[1]
        whole = products.rounded(added, additions)
        lost = whole.error - added.error + sized.error
        gates = Bar(value, Sized(size, lost))
        return replace(bars, gates=gates, later_peak=self.later_peak)

    def _joined(
        self, lowered: Lowered, chunks: list[ChunkBars], peaks: list[FloatArray]
    ) -> Cotangents:
        """Cotangents of the lowered fields from those of all chunks."""

        def number(name: str) -> ErrorNumber:
            parts: list[Bar] = [getattr(bars, name) for bars in chunks]
            value = np.concatenate([bar.value for bar in parts], 1)
            error = np.concatenate([bar.sized.error for bar in parts], 1)
            own = (bars.later_peak if name == "gates" else bars.peak for bars in chunks)
            tops = zip(map(np.maximum, peaks, own), parts, strict=True)
            peak = np.concatenate(
                [np.broadcast_to(x[:, None, None], y.value.shape) for x, y in tops], 1
            )
            found = ErrorNumber(self.rules, value, np.abs(value), error, peak)
            return found if name == "v" else found[..., None]

        read, p, gates = number("read"), number("p"), number("gates")
        key: FloatArray = np.zeros(())
        if lowered.erases_decayed:
            # dk is what k writes and erases; dq what it reads by w k.
            written = self._written(lowered, p, number("b"))
            q = _divided(read, lowered.w)
            bars = {"p": _nothing(written), "q": q, "k": written}
            key = lowered.q.value * q.value
            if lowered.w.shape[2] == 1:
                key = key.sum(2, keepdims=True)
        else:
            bars = {"p": p, "q": read, "k": number("k")}
        gates = gates.like(gates.value - key, *gates.components[1:])
        if lowered.log_w is None:
            bars["w"] = _divided(gates, lowered.w)
        else:
            bars |= {"w": gates, "log_w": gates}
        return Cotangents(v=number("v"), r=number("r"), **bars)

    def _written(
        self, lowered: Lowered, column: ErrorNumber, strength: ErrorNumber
    ) -> ErrorNumber:
        """The cotangent of beta k, from that of a chunk's columns k and from beta's.

        Ops take k's to be beta times this and beta's to be k times this. A chunk has
        beta's from all that beta multiplies: what that is off by is given to the
        entries along the key.
        """
        inputs = inputs_of(lowered, self.rules)
        key, b = inputs.p.value[..., None], inputs.b.value[..., None]
        square = (key * key).sum(2, keepdims=True)
        along = key / np.where(square > 0.0, square, 1.0)
        value, _, error, peak = column.components
        inverse = 1.0 / np.where(b != 0.0, b, np.inf)
        value = np.where(b != 0.0, value * inverse, along * strength.value)
        error = error * np.abs(inverse) + np.abs(along) * strength.error
        if lowered.key is None:
            # Of a step that forgets all, k is not known to its size.
            error = np.where(lowered.w.value == 0.0, np.inf, error)
        return column.like(value, np.abs(value), error, peak)


def _nothing(x: ErrorNumber) -> ErrorNumber:
    """Zero, known exactly."""
    zero = np.zeros_like(x.value)
    return x.like(zero, zero, zero, x.peak)


def _divided(x: ErrorNumber, w: ErrorNumber) -> ErrorNumber:
    """x / w, for an op that multiplies by w again, and its error by w + e.

    Zero where w leaves nothing, in fp64 too.
    """
    size = np.abs(w.value)
    inverse = 1.0 / np.where(size > NO_DECAY, w.value, np.inf)
    top = np.where(size > NO_DECAY, size + w.error, np.inf)
    value, _, error, peak = x.components
    value = value * inverse
    return x.like(value, np.abs(value), error / top, peak)


def _part(lowered: Lowered, span: slice) -> Lowered:
    """The steps `span` of a lowered tile."""
    names = ("w", "v", "k", "r", "log_w", "p", "q", "key", "strength")
    given = {name: getattr(lowered, name) for name in names}
    parts: dict[str, Any] = {
        name: x if x is None or x.shape[1] == 1 else x[:, span]
        for name, x in given.items()
    }
    return Lowered(**parts, erases_decayed=lowered.erases_decayed)
