"""Reads before the update, for systems that read after it.

What token t writes and how it moves the state is handed on to step t + 1, which reads
first for its own token: o_t = r_t^T S_{t-1}. One more step at the end makes the last
state. So any system serves an op like rwkv6, at the price of a step that changes
nothing at the start. A system that counts steps, as where a state is stored, has that
one told by `lead`: token t moves the state in step t + lead.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from scancheck.ops.normal_form import Cotangents, Lowered
from scancheck.oracles.numbers import concatenate

MOVES = (
    "w",
    "v",
    "k",
    "log_w",
    "p",
    "q",
    "z",
    "log_z",
)  # fields that make the next state


class _State(NamedTuple):
    """The inner system's state, and the moves that it has still to make."""

    inner: Any
    moves: dict[str, Any] | None


class DelayedSystem:
    """An inner system run one step late; `System` says what the methods are."""

    general = False

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        if hasattr(inner, "lead"):
            inner.lead = 1
        self.tail: tuple[Lowered, Any, int] | None = None

    @property
    def alike_when_kept(self) -> bool:
        """As the inner system."""
        return bool(self.inner.alike_when_kept)

    def __getattr__(self, name: str) -> Any:
        """What the inner system offers beside the engine's methods."""
        return getattr(self.inner, name)

    def begin(self, state: Any) -> _State:
        """The inner state, and nothing to be made yet."""
        return _State(self.inner.begin(state), None)

    def forward(
        self, lowered: Lowered, state: _State, start: int, total: int, keep: bool
    ) -> tuple[Any, _State, Any]:
        """o [G, T, L], the state after the tile, and what the adjoint needs."""
        moves = _moves(lowered)
        before = state.moves or self._nothing(moves)
        late = {n: concatenate([before[n], x[:, :-1]], 1) for n, x in moves.items()}
        shifted = replace(lowered, reads_before=False, **late)
        o, inner, states = self.inner.forward(
            shifted, state.inner, start, total + 1, keep
        )
        after = _State(inner, {name: x[:, -1:] for name, x in moves.items()})
        return o, after, (states, shifted) if keep else None

    def _nothing(self, moves: dict[str, Any]) -> dict[str, Any]:
        """A step that leaves the state as it is: w = 1, v = 0."""

        def filled(like: Any, value: float) -> Any:
            return self.inner.constant(np.full(like[:, :1].shape, value))

        return {n: filled(x, float(n in ("w", "z"))) for n, x in moves.items()}

    def end(self, state: _State, total: int) -> Any:
        """The last token's moves made."""
        if state.moves is None:
            return self.inner.end(state.inner, total + 1)
        readout = self.inner.constant(np.zeros(_shape_of_readout(state.moves)))
        tail = Lowered(r=readout, **state.moves)
        _, inner, states = self.inner.forward(tail, state.inner, total, total + 1, True)
        self.tail = tail, states, total
        return self.inner.end(inner, total + 1)

    def begin_adjoint(self, state: Any) -> tuple[Any, dict[str, Any]]:
        """The inner carry before the last step, and the cotangents of its moves."""
        carry = self.inner.begin_adjoint(state)
        if self.tail is None:
            return carry, {}
        tail, states, total = self.tail
        nothing = self.inner.constant(np.zeros(tail.v.shape))
        bars, carry = self.inner.adjoint(tail, states, nothing, carry, total, total + 1)
        return carry, _moves(bars)

    def adjoint(
        self,
        lowered: Lowered,
        states: tuple[Any, Lowered],
        obar: Any,
        carry: tuple[Any, dict[str, Any]],
        start: int,
        total: int,
    ) -> tuple[Cotangents, tuple[Any, dict[str, Any]]]:
        """Cotangents of the tile; those of its last token came with the carry."""
        inner, shifted = states
        back, later = carry
        bars, back = self.inner.adjoint(shifted, inner, obar, back, start, total + 1)
        moves = _moves(bars)
        own = {n: concatenate([x[:, 1:], later[n]], 1) for n, x in moves.items()}
        return replace(bars, **own), (back, {n: x[:, :1] for n, x in moves.items()})

    def end_adjoint(self, carry: tuple[Any, dict[str, Any]]) -> Any:
        """The cotangent of the initial state."""
        return self.inner.end_adjoint(carry[0])


def _moves(fields: Lowered | Cotangents) -> dict[str, Any]:
    """What moves and writes, of a tile or of its cotangents."""
    found = {name: getattr(fields, name) for name in MOVES}
    return {name: x for name, x in found.items() if x is not None}


def _shape_of_readout(moves: dict[str, Any]) -> tuple[int, ...]:
    """[G, 1, K, 1]."""
    groups, _, keys, _ = moves["k"].shape
    return groups, 1, keys, 1
