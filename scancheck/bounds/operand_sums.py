"""What a sum of y_j z_j^T over tokens has lost by rounding its operands y and z.

    keys and values       the state S, which queries read and output cotangents
    queries and cotangents   the adjoint G, from the end, which values and keys read

Roundings to a format of unit roundoff u are counted: on a term's way into the sum y and
z are rounded, one of them decayed. Below the normal range an operand is off by up to
eta, whatever its size. That eta meets the other operands of the term and decays over
steps that follow on each other; with Q the largest product of those, a result that
reads x_t from the sum is off by at most eta Q times

    sum |y_j|_1 |z_j|       by the rounding of x_t
    |x_t|_1 sum |z_j|       of y_j
    |x_t|_inf sum |y_j|_1   of z_j
    sum |z_j|               of a score x_t y_j
    |x_t|_1                 of the sum as an operand

of sums without decays, which factor over keys and lanes. Factored exponentials exp(-c)
multiply an operand by more than one, and exp(c) follows: they count in Q.

An operand that leaves the range takes with it what is read of its key from then on. A
factored one is y_j exp(-c_j), key by key, with c of its own chunk; where all keys have
one decay, z_j may have the exponential as well, or a score x_t y_j before exp(c_t).
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np

from scancheck.bounds.operands import Counts, Flags, FloatArray, Operand


@dataclass(frozen=True, slots=True)
class Sums:
    """After each token of a tile; every array is [G, T, ...]."""

    y: FloatArray  # sum of |y_j|, [G, T, K]
    z: FloatArray  # sum of |z_j|, [G, T, L]
    by_key: FloatArray  # sum of |z_j|_1 |y_j|, and the initial state's rows
    by_lane: FloatArray  # sum of |y_j|_1 |z_j|, and its columns
    largest_y: FloatArray  # largest entry so far, [G, T]
    largest_z: FloatArray
    flags: Flags  # y computed, y unheld, z computed, z unheld, decayed; [G, T, 5]
    ending: FloatArray  # largest product of decays that ends here, [G, T, K, L or 1]
    log: FloatArray  # sum of log decays in the chunk, for factored ones alone
    reach: FloatArray  # Q, [G, T]
    grown: FloatArray  # the same without factored exponentials
    inside: FloatArray  # largest exp(-c_j) so far in the chunk that a score may have
    own: FloatArray  # exp(-c_j) where it is formed and above one, [G, T, K or 1]
    above: FloatArray  # exp(c_j) likewise
    spoiled: Flags  # an operand of this token may have left the range, [G, T, K]
    lost: Flags  # one of this or an earlier token

    def _mapped(self, move: Any) -> Self:
        return type(self)(*(move(getattr(self, f.name)) for f in fields(self)))

    def turned(self) -> Self:
        """In reversed time."""
        return self._mapped(lambda x: x[:, ::-1])

    def last(self) -> Self:
        """Those of all tokens, as if of one."""
        return self._mapped(lambda x: x[:, -1:])

    @property
    def decayed(self) -> Flags:
        """Whether any decay so far is not one."""
        decayed: Flags = self.flags[..., 4]
        return decayed

    def times(self, *, both: bool) -> Counts:
        """Roundings on the way of the worst term into the sum, [G, T].

        `both`: decays are on y and on z, as those of keys and of values are.
        """
        free = 2 - self.flags[..., 1].astype(np.int64) - self.flags[..., 3]
        moved = np.minimum(free, 2 if both else 1)
        counted = self.flags[..., :4].sum(axis=2)
        return np.asarray(counted + self.decayed * moved)

    def read(self, x: FloatArray) -> FloatArray:
        """Floor of a sum over keys with x [G, T, K], in units of eta Q."""
        return _floor(x, self.y, self.z, self.by_lane)

    def read_across(self, x: FloatArray) -> FloatArray:
        """Floor of a sum over lanes with x [G, T, L], in units of eta Q."""
        return _floor(x, self.z, self.y, self.by_key)

    @property
    def floor(self) -> FloatArray:
        """That of the sum itself, [G, T, K, L], in units of eta Q."""
        return np.asarray(self.y[..., None] + self.z[:, :, None])

    @property
    def bound(self) -> FloatArray:
        """What the sum stays below, [G, T, K, L], in units of Q."""
        return np.minimum(self.by_key[..., None], self.by_lane[:, :, None])


def _floor(
    x: FloatArray, y: FloatArray, z: FloatArray, mixed: FloatArray
) -> FloatArray:
    whole, largest = x.sum(2, keepdims=True), x.max(2, initial=0.0, keepdims=True)
    floor = mixed + (whole + 1.0) * z + largest * y.sum(2, keepdims=True) + whole
    return np.asarray(floor)


def no_sums(state: FloatArray) -> Sums:
    """Those of an initial state of these magnitudes [G, K, L], as if of one token."""
    groups, keys, lanes = state.shape
    none = np.zeros((groups, 1))
    return Sums(
        y=np.zeros((groups, 1, keys)),
        z=np.zeros((groups, 1, lanes)),
        by_key=state.sum(2)[:, None],
        by_lane=state.sum(1)[:, None],
        largest_y=none,
        largest_z=none,
        flags=np.zeros((groups, 1, 5), dtype=np.bool_),
        ending=np.ones((groups, 1, 1, 1)),
        log=np.zeros((groups, 1, 1, 1)),
        reach=np.ones((groups, 1)),
        grown=np.ones((groups, 1)),
        inside=np.ones((groups, 1)),
        own=np.ones((groups, 1, 1)),
        above=np.ones((groups, 1, 1)),
        spoiled=np.zeros((groups, 1, keys), dtype=np.bool_),
        lost=np.zeros((groups, 1, keys), dtype=np.bool_),
    )


@dataclass(frozen=True, slots=True)
class Decays:
    """The decays of a tile in the order in which a sum meets them."""

    moved: Flags  # whether any decay of the step is not one, [G, T]
    high: FloatArray  # bounds on them, [G, T, K, L or 1]
    log: FloatArray | None  # their logs, for factored exponentials
    place: int  # of the first step in the grid of chunks
    chunk: int
    largest: float  # that an exponential may be

    @property
    def both(self) -> bool:
        """Whether there are decays of keys and of lanes."""
        return int(self.high.shape[3]) > 1

    @property
    def on_values(self) -> bool:
        """Whether a kernel may have factored exponentials on z, or on scores."""
        log = self.log
        return log is not None and (log.shape[2] == 1 or log.shape[3] > 1)

    def turned(self, place: int) -> Self:
        """In reversed time, from this place on."""
        log = None if self.log is None else self.log[:, ::-1]
        moved, high = self.moved[:, ::-1], self.high[:, ::-1]
        return type(self)(moved, high, log, place, self.chunk, self.largest)


def sums_after(
    before: Sums, y: Operand, z: Operand, decays: Decays, largest: float
) -> Sums:
    """The sums after each of these tokens; `before` is of one, `largest` the format's.

    An operand above `largest`, decayed or not, is lost, and whatever is read later.
    """
    reached = _reached(before, decays)
    rows = (y.computed, y.unheld, z.computed, z.unheld, decays.moved)
    spoiled = _beyond(y, reached, reached.own, largest) | ~(
        reached.own <= decays.largest
    )
    on_z = reached.own.max(2, keepdims=True) if decays.on_values else np.ones((1, 1, 1))
    spoiled |= _beyond(z, reached, on_z, largest).any(2, keepdims=True)
    return Sums(
        y=before.y + np.cumsum(y.size, axis=1),
        z=before.z + np.cumsum(z.size, axis=1),
        by_key=before.by_key + np.cumsum(y.size * z.size.sum(2, keepdims=True), axis=1),
        by_lane=before.by_lane
        + np.cumsum(z.size * y.size.sum(2, keepdims=True), axis=1),
        largest_y=_after(np.maximum, before.largest_y, y.size.max(2, initial=0.0)),
        largest_z=_after(np.maximum, before.largest_z, z.size.max(2, initial=0.0)),
        flags=_after(np.logical_or, before.flags, np.stack(rows, axis=2)),
        spoiled=spoiled,
        lost=_after(np.logical_or, before.lost, spoiled),
        **reached._asdict(),
    )


def _after(join: Any, before: Any, x: Any) -> Any:
    """`join` over this step and all before it."""
    return join(before, join.accumulate(x, axis=1))


class _Reach(NamedTuple):
    """Fields of `Sums` that decays alone make."""

    ending: FloatArray
    log: FloatArray
    reach: FloatArray
    grown: FloatArray
    inside: FloatArray
    own: FloatArray
    above: FloatArray


def _beyond(x: Operand, reach: _Reach, by: FloatArray, largest: float) -> Flags:
    """Whether operands [G, T, N], decayed or times `by`, may be too large."""
    within: Flags = x.size * np.maximum(reach.grown[..., None], by) <= largest
    return ~within


def _reached(before: Sums, decays: Decays) -> _Reach:
    """What products of decays are after each step."""
    groups, steps = decays.high.shape[:2]
    if (
        decays.log is None
        and max(decays.high.max(initial=0.0), before.ending.max(initial=0.0)) <= 1.0
    ):
        return _Reach(*(getattr(before, n)[:, [0] * steps] for n in _Reach._fields))
    endings, reach = np.empty(decays.high.shape), np.empty((groups, steps))
    grown, inside = np.empty((2, groups, steps))
    logs = np.zeros((groups, steps, 1, 1) if decays.log is None else decays.log.shape)
    ending, total = before.ending[:, 0], before.log[:, 0]
    top, growth, near = (x[:, 0] for x in (before.reach, before.grown, before.inside))
    axes = (1, 2)
    for t in range(steps):
        endings[:, t] = ending = np.maximum(1.0, decays.high[:, t] * ending)
        grown[:, t] = growth = np.maximum(growth, ending.max(axes, initial=1.0))
        top = np.maximum(top, growth)
        if decays.log is not None:
            anew = (decays.place + t) % decays.chunk == 0
            logs[:, t] = total = decays.log[:, t] + (0.0 if anew else total)
            top = np.maximum(top, np.exp(np.abs(total).max(axes, initial=0.0)))
            if decays.on_values:
                formed = np.exp((-total).max(axes, initial=0.0))
                near = np.maximum(1.0 if anew else near, formed)
        reach[:, t], inside[:, t] = top, near
    own, above = (np.exp(x.max(3, initial=0.0)) for x in (-logs, logs))
    return _Reach(endings, logs, reach, grown, inside, own, above)
