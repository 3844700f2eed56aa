"""Error bounds as a System of the engine: the same op code, run over error numbers."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds import error_scan as scan
from scancheck.bounds.error_contraction import error_rules
from scancheck.bounds.error_number import ErrorNumber, exact_number
from scancheck.bounds.error_tile import (
    STATE_ROWS,
    run_adjoint,
    run_forward,
    settle_all,
)
from scancheck.bounds.gate_gradient import ChunkTerms, reverse_sums
from scancheck.bounds.outer_product import FactoredNumber, factors_of
from scancheck.bounds.row_tile import run_in_rows
from scancheck.bounds.rules import Rules, Store, reverse_additions
from scancheck.bounds.scan_tables import coefficients, path_table
from scancheck.bounds.tree_emulation import Emulation, emulate, emulation_for
from scancheck.ops.normal_form import Cotangents, Lowered
from scancheck.oracles.contraction import contracted, contracts
from scancheck.oracles.fp64 import contract
from scancheck.oracles.numbers import plain
from scancheck.oracles.systems import check_diagonal
from scancheck.oracles.threads import share

FloatArray = NDArray[np.float64]


class ErrorSystem:
    """Runs ops over error numbers under one set of rules.

    States that are outputs have the smaller one of the counted bound and, where the
    order is named, the emulated one. Gradients have the counted one: a backward pass
    may recompute its states in another order, and may count chunks from either end.
    """

    general = False
    number = ErrorNumber  # the kind of those that scans give

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        # Steps before the first token's that change nothing, as for reads before the
        # update: chunks and stores are counted from the first token on.
        self.lead = 0
        self.coefficients = coefficients(rules)
        self._path: FloatArray = np.zeros((0, scan.PATH_COLUMNS))
        self._emulation: Emulation | None = None
        # Gate gradients summed in reverse: later tiles, and how many steps they have.
        self.gate_sums: ErrorNumber = exact_number(rules, np.zeros(()))
        self.summed_steps = 0
        self.gate_terms: ChunkTerms | None = None
        if rules.gate_gradient == "chunk_sums":
            assert rules.structure.chunk is not None
            self.gate_terms = ChunkTerms(rules.structure.chunk)

    @property
    def alike_when_kept(self) -> bool:
        """States that are kept are not emulated, and the first one is settled too."""
        return self.rules.structure.order == "any" and self.rules.comp == "none"

    def constant(self, values: FloatArray) -> ErrorNumber:
        """Stored inputs, and an op's constants, which the compute format may round."""
        given = exact_number(self.rules, np.asarray(values, dtype=np.float64))
        number = FactoredNumber(self.rules, *given.components)
        if number.error.any():
            return number
        # One zero, repeated, is not copied where tensors are laid out anew.
        value, magnitude, _, peak = number.components
        return number.like(value, magnitude, np.broadcast_to(0.0, value.shape), peak)

    def begin(self, state: ErrorNumber) -> FloatArray:
        """All companion scans of the initial state, [COMPONENTS, G, K, L]."""
        room = scan.COMPONENTS, *state.shape
        s = np.zeros_like(state.value, shape=room, order="C")
        s[scan.VALUE], s[scan.SIZE], s[scan.ERROR] = state.components[:3]
        s[scan.TOP] = s[scan.REACH] = s[scan.SIZE] + s[scan.ERROR]
        s[scan.PEAK] = state.peak
        s[scan.RUNNING] = np.inf
        return s

    def path(self, total: int) -> FloatArray:
        """What depends on the number of steps alone, a row for each of 0 .. total."""
        if len(self._path) != total + 1:
            self._path = path_table(self.rules, total)
        return self._path

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[ErrorNumber, Any, Any]:
        """o [G, T, L], the scans after the tile, and all states when `keep`."""
        check_diagonal(lowered)
        groups, keys, lanes = state.shape[1:]
        steps = lowered.v.shape[1]
        s = state.copy()
        o = np.zeros((4, groups, steps, lanes))
        states = np.empty((STATE_ROWS, steps + 1 if keep else 0, groups, keys, lanes))
        outputs = (
            s,
            self.coefficients,
            o,
            states,
            start - self.lead,
            self.rules.state_every,
            self.path(total),
        )
        if self.in_rows:
            w, z = factors_of(self._cast(lowered.w, self.rules.decay_cast))
            run_in_rows(
                w,
                z,
                lowered.v[:, :, None, :],
                lowered.k,
                lowered.r,
                self.rules.drive_cast,
                *outputs,
            )
        else:
            self._run_each(lowered, state, outputs, total, keep)
        out = self.number(self.rules, *o)
        if lowered.r is not None:
            out = out.summed(keys - 1)
            out.terms = keys
        return out, s, states if keep else None

    @property
    def in_rows(self) -> bool:
        """Whether forward passes run over rows of lanes, and expand nothing."""
        return self.alike_when_kept

    def _run_each(
        self,
        lowered: Lowered,
        state: FloatArray,
        outputs: tuple[Any, ...],
        total: int,
        keep: bool,
    ) -> None:
        """The forward pass entry by entry, into `outputs` of `run_forward`."""
        s, _, _, _, start, _, _ = outputs
        groups, keys, lanes = s.shape[1:]
        w = self._packed(self._cast(lowered.w, self.rules.decay_cast), groups, keys)
        x = self._packed(self.written(lowered), groups, keys)
        r = self._packed(lowered.r, groups, keys)
        running = self._running(w, x, state, start, total, keep)
        loop = partial(run_forward, w, x, r, lowered.r is not None, running, *outputs)
        share(groups * lanes, x.size, loop)

    def _running(
        self,
        w: FloatArray,
        x: FloatArray,
        state: FloatArray,
        start: int,
        total: int,
        keep: bool,
    ) -> FloatArray:
        """Emulated bounds of the states after each step, [G, T, K, L], or empty.

        A forward pass without `keep` runs its tiles in order, from the first.
        """
        _, groups, keys, lanes = state.shape
        if start == 0 and not keep and not self.lead:
            value, error = state[scan.VALUE], state[scan.ERROR]
            self._emulation = emulation_for(self.rules, value, error, total)
        emulation = self._emulation
        if keep or emulation is None:
            return np.empty((groups, 0, keys, lanes))
        running = np.empty((groups, x.shape[2], keys, lanes))
        loop = partial(
            emulate,
            w,
            x,
            emulation.memory,
            emulation.chunk,
            emulation.levels,
            emulation.tree,
            emulation.every,
            self.coefficients,
            running,
            start,
        )
        share(groups * lanes, x.size, loop)
        return running

    def written(self, lowered: Lowered) -> ErrorNumber:
        """k v^T, [G, T, K, L]."""
        v: ErrorNumber = lowered.v[:, :, None, :]
        x = v if lowered.k is None else lowered.k * v
        return self._cast(x, self.rules.drive_cast)

    def end(self, state: Any, total: int) -> ErrorNumber:
        """The final state, stored in the state's format."""
        out = np.empty((STATE_ROWS, 1, *state.shape[1:]))
        settle_all(state.copy(), self.coefficients, self.path(total)[total], out)
        number = self.number(self.rules, *out[:4, 0])
        return number.stored(self.rules.state_store)

    def begin_adjoint(self, state: ErrorNumber) -> Any:
        """Scans of the final state's cotangent, and a decay of one above the end."""
        above = np.zeros_like(state.value, shape=(4, *state.shape), order="C")
        above[[0, 1, 3]] = 1.0
        self.gate_sums, self.summed_steps = state, 0
        return self.begin(state), above

    def adjoint(
        self,
        lowered: Lowered,
        states: Any,
        obar: ErrorNumber,
        carry: Any,
        start: int,
        total: int,
    ) -> tuple[Cotangents, Any]:
        """Cotangents of the tile (numerics 2.9).

        da_t = G_t S_{t-1} is bounded by (M^G + E^G)(M^S + E^S)(1 + u) - M^G M^S: for an
        unknown order this is the monomial form, for a declared one the explicit form.
        """
        bar = obar[:, :, None, :]
        y = bar if lowered.r is None else lowered.r * bar
        w = self._cast(lowered.w, self.rules.decay_cast)
        g, after = self.scan_back(w, y, carry, start, total)
        inside = self.number(self.rules, *g[:4]).transpose(1, 0, 2, 3)
        before = self.number(self.rules, *states[:4]).transpose(1, 0, 2, 3)
        before = self._cast(before, self.rules.saved_cast)
        if self.rules.trees:
            inside = inside.summed(reverse_additions(self.rules.structure, total))
        cotangents = self.contracted(lowered, before, obar, inside)
        if lowered.log_w is not None or lowered.log_z is not None:
            of_w = self._of_decayed_states(cotangents.w, lowered.w, inside)
            cotangents = replace(cotangents, w=of_w)
        if self.rules.trees:
            cotangents = replace(
                cotangents,
                w=self._through_tree(cotangents.w, before, inside, states, g, total),
            )
        cotangents = self.with_gates(cotangents, lowered, before, obar, inside, start)
        return cotangents, after

    def _of_decayed_states(self, of_w: Any, w: Any, inside: Any) -> Any:
        """The cotangent G S of w, with what G (w S) may lose, [G, T, K, L or 1].

        Where gates are logs it is used for w (G S) alone. A kernel may form G (w S)
        instead, and what w S loses below the normal range is then multiplied by G.
        """
        least = self.rules.compute.smallest_normal
        lost = self.rules.eta * (inside.magnitude + inside.error)
        lost = lost / np.maximum(np.abs(w.value), least)
        if of_w.shape[3] < lost.shape[3]:
            lost = lost.sum(3)[..., None]
        value, magnitude, error, peak = of_w.components
        return of_w.like(value, magnitude, error + lost, peak)

    def contracted(
        self, lowered: Lowered, states: Any, obar: Any, inside: Any
    ) -> Cotangents:
        """Products and sums of states [G, T + 1, K, L] and cotangents [G, T, K, L]."""
        if contracts(lowered):
            errors = error_rules(self.rules)
            return contracted(errors, lowered, states, obar, inside)
        return contract(lowered, states, obar, inside)

    def scan_back(
        self, w: ErrorNumber, y: ErrorNumber, carry: Any, start: int, total: int
    ) -> tuple[Any, Any]:
        """G_1 .. G_T of a tile, [STATE_ROWS, T, G, K, L], and the next carry."""
        s, above = carry[0].copy(), carry[1].copy()
        groups, keys, lanes = s.shape[1:]
        packed = self._packed(y, groups, keys)
        g = np.empty((STATE_ROWS, y.shape[1], groups, keys, lanes))
        loop = partial(
            run_adjoint,
            self._packed(w, groups, keys),
            packed,
            s,
            above,
            self.coefficients,
            g,
            start - self.lead,
            total - 2 * self.lead,
            self.rules.state_every,
            self.lead > 0,
            self.path(total),
        )
        share(groups * lanes, packed.size, loop)
        return g, (s, above)

    def with_gates(
        self,
        cotangents: Cotangents,
        lowered: Lowered,
        states: ErrorNumber,
        obar: ErrorNumber,
        inside: ErrorNumber,
        start: int,
    ) -> Cotangents:
        """The cotangents with that of log w, where the contract sums it in reverse.

        In a decay of keys and values both have logs, or log_z would not be there.

        states: S_0 to S_T of the tile, inside: its G_t, both [G, T, K, L].
        """
        gated = lowered.log_w is not None or lowered.log_z is not None
        if self.rules.gate_gradient == "direct" or not gated:
            return cotangents
        after, steps = states[:, 1:], inside.shape[1]
        read = after * obar[:, :, None, :]
        if lowered.r is not None:
            read = lowered.r * read
        if self.summed_steps == 0:
            self.gate_sums = after[:, -1] * self.gate_sums
        written = inside * self.written(lowered)
        beside, more_steps = None, 0
        if (terms := self.gate_terms) is not None:
            more_steps = 2 * terms.chunk
            if terms.complete:
                beside = terms.of(start - self.lead, steps)
            else:
                terms.add(read.magnitude + read.error, start)
                terms.add(written.magnitude + written.error, start - self.lead)
        gates, self.gate_sums = reverse_sums(
            read, written, self.gate_sums, self.summed_steps, beside, more_steps
        )
        self.summed_steps += steps
        return replace(cotangents, log_w=gates)

    def _through_tree(
        self,
        wbar: ErrorNumber,
        before: ErrorNumber,
        inside: ErrorNumber,
        states: FloatArray,
        g: FloatArray,
        total: int,
    ) -> ErrorNumber:
        """wbar with what reverse mode through products of decays may add.

        The cotangent of the product over (k, m] is a number of size |G_m S_k|, which
        may leave the range though G_t S_{t-1} does not. Its own underflow reaches w_t
        by P(k, t-1) P(t, m); summed over all intervals that is the product of the two
        floors. Each interval's cotangent is formed at most twice, by at most three
        products and two sums.
        """
        rules = self.rules
        step = rules.eta + rules.add_eta
        error, peak = wbar.error, wbar.peak
        if step > 0.0:
            down = 1.0 + states[4, :-1].transpose(1, 0, 2, 3) / step
            up = 1.0 + g[4].transpose(1, 0, 2, 3) / step
            error = error + 6.0 * step * down * up * self.path(total)[total, scan.GROWN]
        if rules.partial_products:
            peak = np.maximum(peak, before.peak[:, :-1] * inside.peak)
        return wbar.like(wbar.value, wbar.magnitude, error, peak)

    def end_adjoint(self, carry: Any) -> ErrorNumber:
        """w_1 G_1, the cotangent of the initial state."""
        s, above = carry
        total = len(self._path) - 1
        if total <= 0:  # no step was taken
            return self.end(s, 0)
        return self.end(s, total) * self.number(self.rules, *above)

    def reduced(self, number: ErrorNumber, terms: int) -> ErrorNumber:
        """A gradient summed over time and batch: it has counted its terms."""
        return number

    def _cast(self, x: ErrorNumber, cast: Store | None) -> ErrorNumber:
        return x if cast is None else x.stored(cast)

    def _packed(self, x: ErrorNumber | None, groups: int, keys: int) -> FloatArray:
        """[4, G, T, K, L or 1] with groups and keys written out."""
        if x is None:
            return np.zeros((4, 1, 1, 1, 1))
        shape = (groups, x.shape[1], keys, x.shape[3])
        return plain(np.stack([np.broadcast_to(p, shape) for p in x.components]))
