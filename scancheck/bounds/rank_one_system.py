"""Error bounds where a rank-one transition moves the state: norms of columns.

For a kernel that takes one step after the other (numerics 2.10, sequential). A step may
be computed as w S + p (q^T S)^T + k v^T or as (v - S^T k) times beta and k: the counts
below hold for both.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.error_number import ErrorNumber
from scancheck.bounds.error_system import ErrorSystem
from scancheck.bounds.rules import Rules
from scancheck.errors import CaseInvalid
from scancheck.ops.normal_form import Cotangents, Lowered
from scancheck.oracles.columns import (
    Columns,
    Known,
    Machine,
    Roundings,
    norms,
    run_back,
    run_columns,
)
from scancheck.oracles.rank_one import column_norms, operands_of

FloatArray = NDArray[np.float64]


class ColumnState(NamedTuple):
    """Exact columns, norms of their errors, and the largest magnitude on their way."""

    value: FloatArray  # [G, K, L]
    error: FloatArray  # [G, L]
    peak: FloatArray  # [G, L]


class RankOneErrorSystem(ErrorSystem):
    """Runs ops over error numbers, the recurrence by norms of columns.

    Raises CaseInvalid for a contract whose order is not sequential, or compensated.
    """

    alike_when_kept = True
    machine: Machine | None = None  # where columns are scanned: here

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        if rules.structure.kind != "sequential":
            raise CaseInvalid(
                "contract structure: expected sequential or chunk(C), the orders whose "
                "bounds are known for a rank-one transition (delta rule, RWKV-7); got "
                f"{rules.structure.kind}. A kernel that goes token by token says so "
                "with --contract structure=sequential, one in chunks of 64 with "
                "structure=chunk(64)"
            )
        if rules.comp != "none":
            raise CaseInvalid(
                f"contract comp: expected none beside a rank-one transition; got "
                f"{rules.comp}"
            )
        self.roundings = Roundings(
            u=rules.u,
            eta=rules.eta + rules.add_eta + rules.state_eta,
            decay=3,  # of w S, and two sums
            erase=6,  # beside K: v - c, beta, k, and the sums
            write=6,
            total=2,
            store=rules.state_u,
        )

    def begin(self, state: ErrorNumber) -> Any:
        """Columns of the initial state."""
        value = state.value.copy()
        error = column_norms(np.broadcast_to(state.error, value.shape))
        return ColumnState(value, error, state.peak.max(1))

    def forward(
        self, lowered: Lowered, state: ColumnState, start: int, total: int, keep: bool
    ) -> tuple[ErrorNumber, Any, Any]:
        """o [G, T, L], the columns after the tile, and all of them when `keep`."""
        value, error = state.value.copy(), state.error.copy()
        operands = self._operands(lowered, {"k": lowered.k, "r": lowered.r})
        v = self._cast(lowered.v, self.rules.drive_cast)
        operands["v"] = _known(v)
        found = run_columns(
            operands, self.roundings, value, error, keep=keep, machine=self.machine
        )
        peak = self._peak(operands, found, state.peak)
        o, keys = found.o, value.shape[1]
        out = self.number(self.rules, o.value, np.abs(o.value), o.radius, peak)
        out.terms = keys
        last = peak[:, -1] if peak.shape[1] else state.peak
        states = self._numbers(found, peak, state.peak) if keep else None
        return out, ColumnState(value, error, last), states

    def _operands(self, lowered: Lowered, others: dict[str, Any]) -> dict[str, Known]:
        """Exact values and errors of what a step takes."""
        parts = {"w": self._cast(lowered.w, self.rules.decay_cast)}
        parts |= {"p": lowered.p, "q": lowered.q} | others
        return operands_of(lowered, {n: _known(x) for n, x in parts.items()})

    def _peak(
        self, operands: dict[str, Known], found: Columns, before: FloatArray
    ) -> FloatArray:
        """The largest magnitude up to each step, [G, T, L]."""
        p, q, k = (np.abs(operands[n].value).sum(-1)[..., None] for n in "pqk")
        v = np.abs(operands["v"].value)
        reach = np.concatenate([before[:, None], found.reach], 1)
        step = reach[:, :-1] * np.maximum(q, p * q) + k * v
        whole = np.maximum(np.maximum(step, reach[:, 1:]), before[:, None])
        return self.running_maximum(whole)

    def running_maximum(self, x: FloatArray) -> FloatArray:
        """The largest entry up to each step of [G, T, L]."""
        found: FloatArray = np.maximum.accumulate(x, 1)
        return found

    def _numbers(
        self, found: Columns, peak: FloatArray, before: FloatArray
    ) -> ErrorNumber:
        """S_0 .. S_T of a tile as error numbers, [G, T + 1, K, L]."""
        peaks = np.concatenate([before[:, None], peak], 1)
        return self._number(found.states, found.errors, peaks)

    def _number(
        self, columns: FloatArray, error: FloatArray, peak: FloatArray
    ) -> ErrorNumber:
        """Columns [..., K, L] with an error norm and a peak [..., L] for each."""
        return self.number(
            self.rules,
            columns,
            np.abs(columns),
            np.broadcast_to(error[..., None, :], columns.shape),
            np.broadcast_to(peak[..., None, :], columns.shape),
        )

    def end(self, state: ColumnState, total: int) -> ErrorNumber:
        """The final state, stored in the state's format."""
        return self._number(*state).stored(self.rules.state_store)

    def begin_adjoint(self, state: ErrorNumber) -> Any:
        """Columns of the final state's cotangent."""
        return self.begin(state)

    def adjoint(
        self,
        lowered: Lowered,
        states: ErrorNumber,
        obar: ErrorNumber,
        carry: ColumnState,
        start: int,
        total: int,
    ) -> tuple[Cotangents, Any]:
        """Cotangents of the tile, and the columns before it."""
        operands = self._operands(lowered, {"r": lowered.r})
        operands["bar"] = _known(obar)
        found = run_back(
            operands, self.roundings, carry.value, carry.error, self.machine
        )
        size = norms(found.states, "gtkl,gtkl->gtl", 2)
        top = (size + found.errors).max(1)
        q = _top(np.abs(operands["q"].value).sum(-1))[:, None]
        peak = np.maximum(carry.peak, top * np.maximum(q, 1.0))
        g = self._number(found.states, found.errors, peak[:, None])
        back = ColumnState(found.states[:, 0].copy(), found.errors[:, 0].copy(), peak)
        states = self._cast(states, self.rules.saved_cast)
        bars = self.contracted(lowered, states, obar, g[:, 1:])
        return self._from_decayed_state(bars, lowered, g[:, 1:]), back

    def _from_decayed_state(
        self, bars: Cotangents, lowered: Lowered, g: ErrorNumber
    ) -> Cotangents:
        """The cotangents of w and q where a kernel forms those of gates and keys.

        Ops multiply them by w. A kernel may multiply w S instead, which lost something
        below the normal range, and for a delta rule's keys also beta times the error:
        what is lost times what meets it is divided by w here. What k makes of the loss
        in the error itself is in the cotangent of p = -beta k.
        """
        w = np.abs(lowered.w.value)
        inverse = 1.0 / np.where(w > 0.0, w, np.inf)
        eta = self.rules.eta + self.rules.add_eta
        lost = eta * inverse
        size = g.magnitude + g.error
        bars = replace(bars, w=_wider(bars.w, lost * size))
        if not lowered.erases_decayed:
            return bars
        met = (np.abs(lowered.p.value) * size).sum((2, 3))[:, :, None, None]
        met = met + 4.0 * size.sum(3)[:, :, :, None]
        keys = (np.abs(lowered.q.value) * inverse).sum(2, keepdims=True)
        in_error = eta * (keys + 2.0) * size.sum(3)[:, :, :, None]
        return replace(bars, q=_wider(bars.q, lost * met), p=_wider(bars.p, in_error))

    def end_adjoint(self, carry: ColumnState) -> ErrorNumber:
        """The cotangent of the initial state."""
        return self._number(*carry)


def _wider(number: ErrorNumber, more: FloatArray) -> ErrorNumber:
    value, magnitude, error, peak = number.components
    return number.like(value, magnitude, error + more, peak)


def _top(x: FloatArray) -> FloatArray:
    """The largest entry of each row of numbers that are not negative; 0 of none."""
    found: FloatArray = x.max(-1) if x.shape[-1] else x.sum(-1)
    return found


def _known(number: ErrorNumber) -> Known:
    return Known(number.value, number.error)
