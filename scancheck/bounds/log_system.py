"""Error bounds of kernels that work in log space: the same ops, another scan."""

from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds import log_entry as scan
from scancheck.bounds import log_reverse_chunks as transposed
from scancheck.bounds import log_reverse_mode as reverse
from scancheck.bounds import log_whole as whole
from scancheck.bounds.error_number import ErrorNumber
from scancheck.bounds.error_system import ErrorSystem
from scancheck.bounds.log_tile import run_adjoint, run_forward
from scancheck.bounds.rules import Rules, tree_depth
from scancheck.errors import CaseInvalid
from scancheck.ops.normal_form import Cotangents, Lowered
from scancheck.oracles.fp64 import contract
from scancheck.oracles.systems import check_diagonal
from scancheck.oracles.threads import share

FloatArray = NDArray[np.float64]


class LogChunkSystem(ErrorSystem):
    """Runs ops whose decay is given by log gates, under a log form of chunks.

    Chunks as the structure says, one chunk of the whole length where it says none.
    Gradients are those of the explicit adjoint, itself in log space and counted from
    the end. They may as well be reverse mode's, counted from the start
    (`log_reverse_chunks`, `log_reverse_mode` over the whole length): callers cannot see
    which one, and have the larger bound.
    """

    def __init__(self, rules: Rules, form: str) -> None:
        super().__init__(rules)
        self.form = form
        self.coefficients = _coefficients(rules, form)
        self.total = 0
        # Error and peak of the initial state's cotangent as reverse mode has it.
        self.first: FloatArray = np.zeros((2, 0, 0, 0))
        # Of gates summed in reverse, the largest factor's cotangent so far.
        self.gate_peak: FloatArray = np.zeros((1, 1, 1, 1))
        # The initial state as a number, where there is no step.
        self.unmoved: FloatArray = np.zeros((4, 0, 0, 0))

    @property
    def in_rows(self) -> bool:
        """Its loops take all entries expanded."""
        return False

    def _lead(self) -> int:
        """Steps before the first chunk; sums over the whole length have no chunks."""
        return 0 if self.form == "full" else self.lead

    def begin(self, state: ErrorNumber) -> Any:
        """The scan of the initial state; its history comes with the first tile."""
        s = np.zeros((scan.COMPONENTS, *state.shape))
        s[scan.VALUE], s[scan.SIZE], s[scan.ERROR], s[scan.PEAK] = state.components
        return s, None

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[ErrorNumber, Any, Any]:
        """o [G, T, L], the scan after the tile, and all states when `keep`."""
        check_diagonal(lowered)
        s, h, table = self._scan(state, total)
        groups, keys, lanes = s.shape[1:]
        steps = lowered.v.shape[1]
        log, w = self._gates(lowered, groups, keys)
        x = self._packed(self.written(lowered), groups, keys)
        r = self._packed(lowered.r, groups, keys)
        o = np.zeros((4, groups, steps, lanes))
        states = np.empty(
            (scan.STATE_ROWS, steps + 1 if keep else 0, groups, keys, lanes)
        )
        loop = partial(
            run_forward,
            log, w, x, r, lowered.r is not None, s, h, self.coefficients, table, o,
            states, start - self._lead(), self.rules.state_every,
        )  # fmt: skip
        share(groups * lanes, x.size, loop)
        out = ErrorNumber(self.rules, *o)
        if lowered.r is not None:
            out = out.summed(keys - 1)
            out.terms = keys
        return out, (s, h), states if keep else None

    def end(self, state: Any, total: int) -> ErrorNumber:
        """The final state, stored in the state's format."""
        s, _ = state
        if self.form == "full" and not total:
            s = s.copy()
            whole.run_no_step(s.reshape(len(s), -1), self.coefficients)
            self.unmoved = s[[scan.VALUE, scan.SIZE, scan.ERROR, scan.PEAK]]
        value = s[scan.VALUE]
        size = s[scan.SIZE] if self.rules.trees else np.abs(value)
        number = ErrorNumber(self.rules, value, size, s[scan.ERROR], s[scan.PEAK])
        return number.stored(self.rules.state_store)

    def begin_adjoint(self, state: ErrorNumber) -> Any:
        """The scan of the final state's cotangent, and a gate of 0 above the end."""
        above = np.zeros((8, *state.shape))
        above[[4, 5, 7]] = 1.0
        self.gate_sums, self.summed_steps = state, 0
        self.gate_peak = np.zeros((1, 1, 1, 1))
        self.first = np.zeros((2, *state.shape))
        if self.form == "full":
            sums = np.zeros((reverse.COMPONENTS, *state.shape))
            sums[reverse.SIZE], sums[reverse.INNER] = state.magnitude, state.error
            later = np.zeros((2, *state.shape))
            later[0] = 1.0
            return self.begin(state), above, (sums, later)
        s = np.zeros((scan.COMPONENTS, *state.shape))
        s[scan.SIZE], s[scan.LASTING] = state.magnitude, state.peak
        tree = self.coefficients[scan.TREE_CARRY] > 0.0
        s[scan.START_SIZE] = state.magnitude if tree else np.abs(state.value)
        s[scan.START_ERROR] = state.error
        return self.begin(state), above, (s, np.ones(state.shape), None)

    def adjoint(
        self,
        lowered: Lowered,
        states: Any,
        obar: ErrorNumber,
        carry: Any,
        start: int,
        total: int,
    ) -> tuple[Cotangents, Any]:
        """Cotangents of the tile, by the explicit adjoint (numerics 2.9)."""
        s, h, table = self._scan(carry[0], total)
        above = carry[1].copy()
        groups, keys, lanes = s.shape[1:]
        log, w = self._gates(lowered, groups, keys)
        bar = obar[:, :, None, :]
        y = self._packed(bar if lowered.r is None else lowered.r * bar, groups, keys)
        g = np.empty((4, obar.shape[1], groups, keys, lanes))
        loop = partial(
            run_adjoint,
            log, w, y, s, h, above, self.coefficients, table, g, start - self._lead(),
            total - 2 * self._lead(), self.rules.state_every,
        )  # fmt: skip
        share(groups * lanes, y.size, loop)
        again: Any
        late_sums = g[:0, 0]
        if self.form == "full":
            again = carry[2][0].copy(), carry[2][1].copy()
            self._from_start(lowered, w, y, states, again, table, g, start)
        else:
            late, later, past = carry[2]
            past = np.zeros_like(h) if past is None else past.copy()
            again = late.copy(), later.copy(), past
            late_sums = self._transposed(log, w, y, states, again, table, g, start)
        inside = ErrorNumber(self.rules, *g).transpose(1, 0, 2, 3)
        both = ErrorNumber(self.rules, *states[: scan.NUMBER_ROWS])
        both = both.transpose(1, 0, 2, 3)
        cotangents = contract(lowered, both, obar, inside)
        cotangents = self.with_gates(cotangents, lowered, both, obar, inside, start)
        if self.form in ("factored", "ratio"):
            early, late = (
                x.transpose(1, 0, 2, 3) * (1.0 + table[-1, scan.GROWTH])
                for x in (states[scan.STATE_ROWS - 1, 1:], late_sums)
            )
            cotangents = self._before_factors(
                cotangents, lowered, obar, inside, early, late, start, h.shape[1]
            )
        return cotangents, ((s, h), above, again)

    def _before_factors(
        self,
        cotangents: Cotangents,
        lowered: Lowered,
        obar: ErrorNumber,
        inside: ErrorNumber,
        early: FloatArray,
        late: FloatArray,
        start: int,
        chunk: int,
    ) -> Cotangents:
        """Cotangents with the peaks of products whose factor comes last.

        early, late [G, T, K, L]: the sums that exp(c_t) and exp(-c_t) multiply, of what
        was written and, in reverse mode, of cotangents. dr_t is exp(c_t) times early
        obar_t, dk_t and dv_t exp(-c_t) times late v_t and late k_t; without the factor
        those are, times r, k and v, its own cotangents, and in sums in reverse part of
        those of all gates before. A whole chunk's sum meets G.
        """
        steps = start + np.arange(early.shape[1])
        read = early * _top(obar)[:, :, None, :]
        if self._lead():
            # What a chunk's first token reads is of the one before, which is whole.
            read = np.where((steps % chunk == 0)[:, None, None], 0.0, read)
        r, k, gates = cotangents.r, cotangents.k, cotangents.log_w
        values = _top(lowered.v)[:, :, None, :]
        write, v = late * values, cotangents.v
        parts = [read, write]
        if k is not None and lowered.k is not None:
            k = _raised(k, _summed(write, k.shape))
            v = _raised(v, (late * _top(lowered.k)).sum(2))
            parts.append(write * _top(lowered.k))
        if r is not None and lowered.r is not None:
            r = _raised(r, _summed(read, r.shape))
            parts.append(read * _top(lowered.r))
        if gates is not None and lowered.log_w is not None:
            ends = (steps + 1 - self._lead()) % chunk == 0
            ends |= steps == self.total - 1
            moved = early * np.where(ends[:, None, None], _top(inside), 0.0)
            own = lowered.log_w.shape
            peak = reduce(np.maximum, (_summed(x, own) for x in (*parts, moved)))
            peak = np.maximum.accumulate(peak[:, ::-1], axis=1)[:, ::-1]
            peak = np.maximum(peak, self.gate_peak)
            self.gate_peak = peak[:, :1]
            gates = _raised(gates, peak)
        return replace(cotangents, r=r, k=k, v=v, log_w=gates)

    def _from_start(
        self,
        lowered: Lowered,
        w: FloatArray,
        y: FloatArray,
        states: FloatArray,
        again: Any,
        table: Any,
        g: FloatArray,
        start: int,
    ) -> None:
        """Raises errors and peaks of G_1..G_T in g to those of reverse mode."""
        groups, keys, lanes = g.shape[2:]
        x = self._packed(self.written(lowered), groups, keys)
        out = np.zeros((2, x.shape[2] + 1, groups, keys, lanes))
        sums, later = again
        loop = partial(
            reverse.run_from_start,
            w, x, y, states, sums, later, self.coefficients, table, out,
            start - self._lead(), self.total - self._lead(),
        )  # fmt: skip
        share(groups * lanes, x.size, loop)
        self._raise(g, out, start)

    def _transposed(
        self,
        log: FloatArray,
        w: FloatArray,
        y: FloatArray,
        states: FloatArray,
        again: Any,
        table: Any,
        g: FloatArray,
        start: int,
    ) -> FloatArray:
        """Raises errors and peaks of G_1..G_T in g to those of the forward's decays.

        The sums that exp(-c_t), or 1 / p_t, multiplies, [T, G, K, L].
        """
        late, later, past = again
        groups, keys, lanes = g.shape[2:]
        out = np.zeros((3, g.shape[1] + 1, groups, keys, lanes))
        loop = partial(
            transposed.run_from_start,
            log, w, y, g, states, late, past, later, self.coefficients, table, out,
            start - self._lead(), self.total - self._lead(), self.rules.state_every,
        )  # fmt: skip
        share(groups * lanes, y.size, loop)
        self._raise(g, out[:2], start)
        return out[2, 1:]

    def _raise(self, g: FloatArray, out: FloatArray, start: int) -> None:
        """Errors and peaks in g to those of out [2, T + 1, ...], S_0's first."""
        g[2] = np.maximum(g[2], out[0, 1:])
        g[3] = np.maximum(g[3], out[1, 1:])
        if start == 0:
            self.first = out[:, 0]

    def end_adjoint(self, carry: Any) -> ErrorNumber:
        """w_1 G_1, the cotangent of the initial state."""
        (s, h), above, _ = carry
        if self.form == "full" and not self.total:
            bars = s[[scan.VALUE, scan.SIZE, scan.ERROR, scan.PEAK]]
            reverse.run_no_step(
                self.unmoved.reshape(4, -1),
                bars.reshape(4, -1),
                self.coefficients,
                self.first.reshape(2, -1),
            )
            bar = ErrorNumber(self.rules, *bars)
        else:
            bar = self.end((s, h), self.total) * ErrorNumber(self.rules, *above[4:])
        error, peak = np.maximum(self.first, (bar.error, bar.peak))
        return bar.like(bar.value, bar.magnitude, error, peak)

    def _scan(self, state: Any, total: int) -> tuple[FloatArray, FloatArray, Any]:
        """Copies of the scan and its history, and the table by position."""
        s, h = state
        self.total, structure = total, self.rules.structure
        self.coefficients[scan.LEAD] = self._lead()
        total -= self._lead()
        length = chunk = min(structure.chunk or total, max(1, total))
        if self.form == "full":
            length, chunk = max(1, total), 1
        if h is None:
            h = np.zeros((scan.HISTORY, chunk, *s.shape[1:]))
        return s.copy(), h.copy(), _positions(self.rules, length, self.form)

    def _gates(
        self, lowered: Lowered, groups: int, keys: int
    ) -> tuple[FloatArray, FloatArray]:
        """Log gates and decays, packed; raises CaseInvalid where an op has no gates."""
        w = self._packed(lowered.w, groups, keys)
        if self.form == "ratio":
            return w, w
        if lowered.log_w is None:
            raise CaseInvalid(
                f"contract log={self.form}: expected log gates; this case gives the "
                "decay itself; of the log forms only ratio takes that"
            )
        return self._packed(lowered.log_w, groups, keys), w


def _top(number: ErrorNumber) -> FloatArray:
    """What the computed entries are at most."""
    return np.asarray(number.magnitude + number.error)


def _raised(number: ErrorNumber, peak: FloatArray) -> ErrorNumber:
    """The number with this among its peaks."""
    value, m, e, own = number.components
    return number.like(value, m, e, np.maximum(own, peak))


def _summed(x: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """x [G, T, K, L] summed over the keys and lanes that a `shape` has one of."""
    axes = tuple(axis for axis in (2, 3) if shape[axis] == 1)
    return np.asarray(x.sum(axes, keepdims=True))


def _order(rules: Rules) -> str:
    """In which order sums of log gates are formed."""
    kind = rules.structure.kind
    return rules.structure.inner if kind == "chunk" else kind


def _coefficients(rules: Rules, form: str) -> FloatArray:
    c = np.zeros(scan.COEFFICIENTS)
    c[scan.FORM], c[scan.LARGEST] = scan.FORMS.index(form), rules.overflow
    c[scan.U], c[scan.ETA], c[scan.ADD_ETA] = rules.u, rules.eta, rules.add_eta
    c[scan.STATE_U], c[scan.STATE_ETA] = rules.state_u, rules.state_eta
    c[scan.STATE_LARGEST] = rules.state_largest
    c[scan.EXP0], c[scan.EXP1] = rules.exp
    c[scan.NORMAL] = rules.compute.smallest_normal
    c[scan.LN0], c[scan.LN1] = rules.ln
    c[scan.CAST_LARGEST] = np.inf
    if rules.decay_cast is not None:
        cast = rules.decay_cast
        c[scan.CAST_U], c[scan.CAST_ETA] = cast.u, cast.eta
        c[scan.CAST_LARGEST], c[scan.CAST_NORMAL] = cast.largest, cast.normal
    c[scan.IN_ORDER] = float(_order(rules) == "sequential")
    c[scan.TREES] = float(rules.trees)
    c[scan.TREE_CARRY] = float(rules.structure.carry == "tree")
    return c


def _positions(rules: Rules, length: int, form: str) -> FloatArray:
    """The table that `log_entry` describes, [length, POSITION_COLUMNS]."""
    place = np.arange(length, dtype=np.float64)
    one = np.log1p(rules.u)
    table = np.empty((length, scan.POSITION_COLUMNS))
    # A product, the other terms of the chunk, and the carry; the outer factor.
    count = place + (2.0 if form in ("diff", "segsum") else 3.0)
    # What a renormalised sum loses is relative to its larger operand, 1/2 or more.
    lost = 2.0 * rules.eta if form == "renorm" else 0.0
    each = np.log1p(rules.sum_u + lost)
    table[:, scan.GROWTH] = np.expm1(np.minimum(count * each, 690.0))
    depth = _depths(rules, length + 1)
    # The initial state is one more term of the sum, not of the log gates.
    table[:, scan.DEPTH], depth = depth[1:], depth[:-1]
    table[:, scan.CHAIN] = np.expm1(np.minimum(place * one, 690.0))
    table[:, scan.SUM_GROWTH] = np.expm1(np.minimum(depth * one, 690.0))
    return table


def _depths(rules: Rules, terms: int) -> FloatArray:
    """Additions on a path of a sum of 1 .. terms numbers."""
    if _order(rules) != "tree":
        return np.arange(terms, dtype=np.float64)
    return np.array([tree_depth(n + 1) for n in range(terms)], dtype=np.float64)
