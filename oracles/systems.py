"""Systems: how one kind of number runs a tile of the recurrence, and its adjoint.

`GenericSystem` does it step by step over the number protocol, and is the definition
that the fast systems are tested against (architecture.md gives the adjoint of the
normal form).
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scancheck.ops.normal_form import Cotangents, Lowered
from scancheck.oracles.numbers import stack

FloatArray = NDArray[np.float64]


class System(Protocol):
    """How one kind of number runs the recurrence over a tile.

    `start` is the index of the tile's first step, `total` the number of steps.
    """

    @property
    def general(self) -> bool:
        """Whether it runs every part of the normal form as it is."""
        ...

    @property
    def alike_when_kept(self) -> bool:
        """Whether a forward pass that keeps its states reads out what others do."""
        ...

    def constant(self, values: FloatArray) -> Any: ...
    def begin(self, state: Any) -> Any: ...
    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[Any, Any, Any]: ...
    def end(self, state: Any, total: int) -> Any: ...
    def begin_adjoint(self, state: Any) -> Any: ...
    def adjoint(
        self,
        lowered: Lowered,
        states: Any,
        obar: Any,
        carry: Any,
        start: int,
        total: int,
    ) -> tuple[Cotangents, Any]: ...
    def end_adjoint(self, carry: Any) -> Any: ...
    def reduced(self, number: Any, terms: int) -> Any: ...


class GenericSystem:
    """The recurrence step by step over the number protocol, one state per step."""

    alike_when_kept = True
    general = True

    def constant(self, values: FloatArray) -> Any:
        """Exact stored values as numbers."""
        raise NotImplementedError

    def begin(self, state: Any) -> Any:
        """The scan's own form of the initial state."""
        return state

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[Any, Any, Any]:
        """o [G, T, L], the state after the tile, and S_{t-1}, S_t of each step."""
        outs, states = [], [state]
        for t in range(lowered.v.shape[1]):
            before, state = state, _moved(lowered, t, state) + _driven(lowered, t)
            outs.append(_read(lowered, t, before if lowered.reads_before else state))
            states.append(state)
        return stack(outs, 1), state, states if keep else None

    def end(self, state: Any, total: int) -> Any:
        """The final state as a number."""
        return state

    def begin_adjoint(self, state: Any) -> Any:
        """The scan's own form of the cotangent of the final state."""
        return state

    def adjoint(
        self,
        lowered: Lowered,
        states: Any,
        obar: Any,
        carry: Any,
        start: int,
        total: int,
    ) -> tuple[Cotangents, Any]:
        """Cotangents of the tile, and the cotangent of the state before it."""
        rows: list[dict[str, Any]] = []
        for t in reversed(range(lowered.v.shape[1])):
            above, before = obar[:, t, None, :], states[t]
            read = above if lowered.r is None else _at(lowered.r, t) * above
            g = carry if lowered.reads_before else carry + read
            row = {"v": g[:, 0, :]}
            if lowered.k is not None:
                row["k"] = _fold(g * lowered.v[:, t, None, :], lowered.k)
                row["v"] = (_at(lowered.k, t) * g).sum(1)
            if lowered.r is not None:
                seen = before if lowered.reads_before else states[t + 1]
                row["r"] = _fold(seen * above, lowered.r)
            if lowered.z is not None:
                row["z"] = (g * _moved(lowered, t, before, scaled=False)).sum(1)
                row["z"] = row["z"][:, None, :]
                g = g * lowered.z[:, t]
            row["w"] = g * before
            carry = _at(lowered.w, t) * g
            if lowered.p is not None:
                p, q = lowered.p[:, t], lowered.q[:, t]
                written, erased = (p * g).sum(1), (q * before).sum(1)
                row["p"] = (g * erased[:, None, :]).sum(2)[:, :, None]
                row["q"] = (before * written[:, None, :]).sum(2)[:, :, None]
                carry = carry + q * written[:, None, :]
            if lowered.reads_before:
                carry = carry + read
            rows.append(row)
        names = rows[0] if rows else ()
        bars = {name: stack([row[name] for row in rows[::-1]], 1) for name in names}
        return Cotangents(**bars), carry

    def end_adjoint(self, carry: Any) -> Any:
        """The cotangent of the initial state as a number."""
        return carry

    def reduced(self, number: Any, terms: int) -> Any:
        """A gradient summed over `terms` steps in tiles: nothing more to say."""
        return number


def _at(x: Any, t: int) -> Any:
    """Step t of a [G, T or 1, K, L] tile array."""
    return x[:, t if x.shape[1] > 1 else 0]


def _moved(lowered: Lowered, t: int, state: Any, *, scaled: bool = True) -> Any:
    """(w_t + p_t q_t^T) S diag(z_t), [G, K, L]; not `scaled`: without z_t."""
    moved = _at(lowered.w, t) * state
    if lowered.p is not None:
        read = (lowered.q[:, t] * state).sum(1)
        moved = moved + lowered.p[:, t] * read[:, None, :]
    return moved * lowered.z[:, t] if scaled and lowered.z is not None else moved


def _driven(lowered: Lowered, t: int) -> Any:
    """k_t v_t^T, [G, K, L]."""
    v = lowered.v[:, t, None, :]
    return v if lowered.k is None else _at(lowered.k, t) * v


def _read(lowered: Lowered, t: int, state: Any) -> Any:
    """r_t^T S_t, [G, L]."""
    if lowered.r is None:
        return state[:, 0, :]
    return (_at(lowered.r, t) * state).sum(1)


def _fold(x: Any, like: Any) -> Any:
    """[G, K, L] summed over lanes where `like` has one lane for all."""
    return x.sum(2)[:, :, None] if like.shape[3] == 1 else x


def check_diagonal(lowered: Lowered) -> None:
    """Raises NotImplementedError for what the loops of a system cannot do."""
    if lowered.p is not None or lowered.z is not None or lowered.reads_before:
        raise NotImplementedError(
            "expected a diagonal transition that is read after its update; got a "
            "rank-one transition (p, q), a value-side decay (z) or an earlier read"
        )
