"""Budgets of chunks that are matrix products of short operands (numerics 2.7).

The bound of the inner system stands for everything that is computed; what operands lose
comes on top of its results. n roundings to a format of unit roundoff u on the way of
each term make of a result of magnitude M (the sum of the terms' magnitudes) and error E

    E + ((1 + u)^n - 1)(M + E) + (1 + u)^n eta floor

where `operands` and `operand_sums` count n and bound the floor:

    final state   those of keys and values
    o             those of the state; it or a score as an operand; the query's
    dq            the same with output cotangents for queries
    dk, dv        those of the adjoint G, as the state's are, and its initial one: where
                  S was rounded, automatic differentiation rounds its cotangent; it or a
                  score's cotangent as an operand; the values', the keys'
    d log w       those of S and of G, and both as operands; in reverse of dq and dk

and one for a gradient that is rounded before it is added up or handed on, two where
the operand itself was computed. States
between chunks are added up in `compute`, so that a term's roundings never grow with the
number of chunks. A decay may be two exponentials, of both ends of a block of its chunk:
exp's e0 and the products once more. Operands as they are computed lose nothing but what
underflows in another order than step by step: a score that meets a large value, and
what a gate takes from the keys before it in its chunk (`earlier_keys`).

What leaves the range leaves it for all that the same products make. An operand that is
infinite spoils its own key's results in its whole chunk, before it too, where a masked
score of zero meets it; what all keys make, o and dv, from its own token on. Gate
gradients in reverse have met every later dq and dk.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from scancheck.bounds.earlier_keys import (
    Begun,
    Earlier,
    earlier_in_chunk,
    nothing_begun,
)
from scancheck.bounds.error_number import ErrorNumber
from scancheck.bounds.error_system import ErrorSystem
from scancheck.bounds.operand_sums import Decays, Sums, no_sums, sums_after
from scancheck.bounds.operands import (
    Counts,
    Flags,
    FloatArray,
    Operand,
    decays_of,
    keys_of,
    operand,
)
from scancheck.bounds.rules import Rules, Store
from scancheck.ops.normal_form import Cotangents, Lowered

MORE_ROUNDINGS = 4.0  # of a decay that is a product of two


class Ahead(NamedTuple):
    """The scan of the state, between tiles."""

    inner: Any
    sums: Sums  # of one token
    both: bool  # whether keys and lanes have decays
    begun: Begun


class Kept(NamedTuple):
    """What a forward pass leaves for the adjoint."""

    states: Any
    k: Operand
    v: Operand
    r: Operand
    sums: Sums
    decays: Decays
    earlier: Earlier


@dataclass(frozen=True, slots=True)
class Back:
    """The scan of the adjoint, between tiles."""

    inner: Any
    sums: Sums  # of one token
    ahead: Sums | None  # the state's after the last token
    both: bool
    gate_times: Counts  # the largest count of dq and dk so far, [G, 1]
    gate_floor: FloatArray  # the sum of their floors, [G, 1, K, L]
    gate_lost: Flags  # whether any of them is lost, [G, 1, K]
    # Of the earliest chunk so far whether keys, and queries, are spoiled.
    keys: "InChunk | None"
    queries: "InChunk | None"


class InChunk(NamedTuple):
    """Whether any token of a chunk has something."""

    number: int  # of the chunk
    flags: Flags  # [G, K]


class MatrixProductSystem:
    """An error system whose results have had their operands rounded; see the module."""

    general = False

    def __init__(self, inner: ErrorSystem, rules: Rules, *, factored: bool) -> None:
        self.inner, self.rules, self.factored = inner, rules, factored

    @property
    def lead(self) -> int:
        """As that of the inner system."""
        return self.inner.lead

    @lead.setter
    def lead(self, steps: int) -> None:
        self.inner.lead = steps

    def __getattr__(self, name: str) -> Any:
        """What the inner system offers beside the methods below."""
        return getattr(self.inner, name)

    @property
    def store(self) -> Store:
        """The rounding of one operand; as computed it may only have underflowed."""
        rules = self.rules
        if rules.operand_cast is not None:
            return rules.operand_cast
        return Store(u=0.0, eta=rules.eta, largest=rules.overflow)

    def begin(self, state: ErrorNumber) -> Ahead:
        """The inner scan of the initial state, and no token."""
        size = state.magnitude + state.error
        begun = nothing_begun(*state.shape)
        return Ahead(self.inner.begin(state), no_sums(size), False, begun)

    def forward(
        self, lowered: Lowered, state: Ahead, start: int, total: int, keep: bool
    ) -> tuple[ErrorNumber, Ahead, Any]:
        """o [G, T, L], the scan after the tile, and what the adjoint needs."""
        o, inner, states = self.inner.forward(lowered, state.inner, start, total, keep)
        keys, queries = keys_of(lowered)
        k, v, r = (operand(x, self.rules) for x in (keys, lowered.v, queries))
        log = lowered.log_w.value if self.factored else None
        chunk = self.rules.structure.chunk or max(1, total)
        limit = self.rules.overflow
        decays = Decays(*decays_of(lowered), log, start - self.lead, chunk, limit)
        s = sums_after(state.sums, k, v, decays, self.store.largest)
        lost = (s.lost | self._spoiled(r, s)).any(2, keepdims=True)
        write = start - self.lead
        earlier, begun = earlier_in_chunk(k.size, v.size, write, chunk, state.begun)
        steps = min(chunk, total)
        floor = s.read(r.size) + self._in_scores(r, s.z, steps)
        out = self._rounded(
            o,
            s.times(both=decays.both) + 1 + r.times(s.decayed),
            s.decayed,
            s.reach[..., None] * floor,
            lost | self._leaves(r, s.largest_y, s),
        )
        kept = Kept(states, k, v, r, s, decays, earlier) if keep else None
        return out, Ahead(inner, s.last(), decays.both, begun), kept

    def _in_scores(self, x: Operand, met: FloatArray, steps: int) -> FloatArray:
        """Floor of products in a chunk of so many tokens, in units of the operands'.

        A score adds up as many products as x has entries, and may be decayed; each of
        them meets the other operand, whose sizes add up to `met` [G, T, N], and the
        product of both is one more. All are of `compute`, and have its eta.
        """
        ratio = self.rules.eta / self.store.eta if self.store.eta > 0.0 else 0.0
        return np.asarray(ratio * ((x.size.shape[2] + 1.0) * met + steps))

    def _spoiled(self, r: Operand, s: Sums) -> Flags:
        """Whether a query, times exp(c_t) where that is formed, is too large [G, T, K].

        Beside the first token of a chunk that reads before its update c is the last
        one's of the chunk before.
        """
        within = (r.size * s.above <= self.store.largest) & (
            s.above <= self.rules.overflow
        )
        return np.asarray(~within)

    def _leaves(
        self, x: Operand, largest: FloatArray, s: Sums, more: float | FloatArray = 1.0
    ) -> Flags:
        """Whether x, or its product with an operand up to `largest`, is too large.

        [G, T, 1]; `s` has the decays that the product meets, and `more` one besides.
        """
        top = self.store.largest
        whole, one = x.size.sum(2), x.size.max(2, initial=0.0)
        reach = np.maximum(np.maximum(s.grown, s.inside), more)
        within = (whole * largest * reach <= top) & (one * s.grown <= top)
        return np.asarray(~within)[..., None]

    def _rounded(
        self,
        number: ErrorNumber,
        times: Counts,
        decayed: Flags,
        floor: FloatArray,
        lost: Flags,
    ) -> ErrorNumber:
        """The result [G, T, ...] after `times` roundings [G, T] of each term.

        `lost` broadcasts to it.
        """
        rules, store = self.rules, self.store
        axes = tuple(range(times.ndim, len(number.shape)))
        more = 0.0
        if rules.operand_cast is not None:
            more = np.log1p(rules.exp[0] + MORE_ROUNDINGS * rules.u)
        growth = np.expm1(times * np.log1p(store.u) + decayed * more)
        growth = np.expand_dims(growth, axes)
        m, e = number.magnitude, number.error
        # A state that was stored was rounded after its terms.
        e = e + growth * (1.0 + rules.state_u) * (m + e)
        if store.eta > 0.0:
            e = e + (1.0 + growth) * store.eta * floor
        peak = np.maximum(number.peak, m + e)
        gone = lost | ~(number.peak <= store.largest)
        return number.like(number.value, m, e, np.where(gone, np.inf, peak))

    def end(self, state: Ahead, total: int) -> ErrorNumber:
        """The final state."""
        return self._of_sum(self.inner.end(state.inner, total), state.sums, state.both)

    def _of_sum(
        self, number: ErrorNumber, sums: Sums, both: bool, more: int = 0
    ) -> ErrorNumber:
        """A state [G, K, L] that is added up, in `compute`, from rounded operands."""
        floor = sums.reach[:, 0, None, None] * (sums.floor[:, 0] + more)
        times, decayed = sums.times(both=both)[:, 0] + more, sums.decayed[:, 0]
        lost = sums.lost[:, 0, :, None]
        return self._rounded(number, times, decayed, floor, lost)

    def begin_adjoint(self, state: ErrorNumber) -> Back:
        """The inner carry of the final state's cotangent, and no token."""
        groups, keys, lanes = state.shape
        return Back(
            inner=self.inner.begin_adjoint(state),
            sums=no_sums(state.magnitude + state.error),
            ahead=None,
            both=False,
            gate_times=np.zeros((groups, 1), dtype=np.int64),
            gate_floor=np.zeros((groups, 1, keys, lanes)),
            gate_lost=np.zeros((groups, 1, keys), dtype=np.bool_),
            keys=None,
            queries=None,
        )

    def adjoint(
        self,
        lowered: Lowered,
        states: Kept,
        obar: ErrorNumber,
        carry: Back,
        start: int,
        total: int,
    ) -> tuple[Cotangents, Back]:
        """Cotangents of the tile, each with its operands' roundings."""
        kept, k, v, r, s, decays, earlier = states
        bars, inner = self.inner.adjoint(lowered, kept, obar, carry.inner, start, total)
        do = operand(obar, self.rules)
        # From the end; G has passed a decay one place after its own step.
        place = total - self.lead - start - obar.shape[1] + 1
        both, largest = decays.both, self.store.largest
        turned = decays.turned(place)
        g = sums_after(carry.sums, r.turned(), do.turned(), turned, largest).turned()
        last = carry.ahead or s.last()
        reach = np.maximum(g.reach, last.reach)
        decayed = s.decayed | g.decayed
        into_s, into_g = s.times(both=both), g.times(both=both) + 1
        near = s.own.max(2) if decays.on_values else 1.0
        steps = min(decays.chunk, total)
        scores_q, scores_k = (
            self._in_scores(x, met, steps) for x, met in ((do, s.y), (v, g.y))
        )
        # What is written at a step is of the token before where reads lead.
        write = start - self.lead
        beside_q, keys = _in_chunks(s.spoiled, write, start, decays.chunk, carry.keys)
        beside_k, queries = _in_chunks(
            self._spoiled(r, s), start, write, decays.chunk, carry.queries
        )
        lost_q = s.lost | beside_q | self._leaves(do, last.largest_z, s)
        lost_k = lost_v = g.lost | s.spoiled | beside_k
        lost_k = lost_k | self._leaves(v, g.largest_z, g, near)
        lost_v = lost_v.any(2, keepdims=True) | self._leaves(k, g.largest_y, g, near)
        lost_w = (s.lost | g.lost | lost_q | lost_k)[..., None]

        def rounded(
            bar: ErrorNumber, times: Counts, floor: FloatArray, lost: Flags
        ) -> ErrorNumber:
            # The result's own rounding; what it loses meets nothing more.
            return self._rounded(bar, times + 1, decayed, floor + 1.0, lost)

        of_q = into_s + 1 + do.times(decayed)
        of_k = into_g + 1 + v.times(decayed)
        of_v = into_g + 1 + k.times(decayed)
        q = reach[..., None]
        q_entry = q[..., None]
        kept_s, kept_g = s.floor + 1.0, g.floor + 1.0
        of_w = s.bound * kept_g + kept_s * (g.bound + self.store.eta * kept_g)
        found = replace(
            bars,
            w=rounded(bars.w, into_s + into_g + 2, q_entry**2 * of_w, lost_w),
            v=rounded(
                bars.v,
                of_v + v.computed,
                q * (g.read(k.size) + self._in_scores(k, g.z, steps)),
                lost_v,
            ),
            k=rounded(
                bars.k,
                of_k + k.computed,
                (q * (g.read_across(v.size) + scores_k))[..., None],
                lost_k[..., None],
            ),
            r=rounded(
                bars.r,
                of_q + r.computed,
                (q * (s.read_across(do.size) + scores_q))[..., None],
                lost_q[..., None],
            ),
        )
        gate_times, gate_floor = carry.gate_times, carry.gate_floor
        gate_lost = carry.gate_lost
        if bars.log_w is not None:
            if carry.ahead is None:
                gate_floor = carry.sums.bound * kept_s[:, -1:]
            here = q_entry * (
                _products_floor(r, do, s, kept_s, scores_q)
                + _products_floor(k, v, g, kept_g, scores_k)
            )
            floors = gate_floor + _from_the_end(np.cumsum, here)
            before = q_entry * _earlier_floor(earlier, g, kept_g)
            most = np.maximum(of_q, of_k)
            most = np.maximum(gate_times, _from_the_end(np.maximum.accumulate, most))
            lost = _from_the_end(np.logical_or.accumulate, lost_q | lost_k) | gate_lost
            log_w = rounded(bars.log_w, most + 1, floors + before, lost[..., None])
            found = replace(found, log_w=log_w)
            gate_times, gate_floor, gate_lost = most[:, :1], floors[:, :1], lost[:, :1]
        return found, Back(
            inner=inner,
            sums=g.turned().last(),
            ahead=last,
            both=both,
            gate_times=gate_times,
            gate_floor=gate_floor,
            gate_lost=gate_lost,
            keys=keys,
            queries=queries,
        )

    def end_adjoint(self, carry: Back) -> ErrorNumber:
        """The cotangent of the initial state."""
        number = self.inner.end_adjoint(carry.inner)
        return self._of_sum(number, carry.sums, carry.both, more=1)


def _in_chunks(
    flags: Flags, first: int, wanted: int, chunk: int, later: InChunk | None
) -> tuple[Flags, InChunk]:
    """For tokens from `wanted` on whether any of their chunk has its flag, [G, T, K].

    `flags` [G, T, K] are of tokens from `first` on, `later` of those after. Second, the
    same of the first chunk here.
    """
    groups, steps, keys = flags.shape
    place = np.arange(steps)
    numbers, asked = (first + place) // chunk, (wanted + place) // chunk
    edges = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
    # A chunk of nothing on either side.
    found = np.zeros((groups, len(edges) + 2, keys), dtype=np.bool_)
    found[:, 1:-1] = np.logical_or.reduceat(flags, edges, axis=1)
    if later is not None:
        found[:, later.number - numbers[0] + 1] |= later.flags
    here = InChunk(int(numbers[0]), found[:, 1])
    return found[:, asked - numbers[0] + 1], here


def _products_floor(
    x: Operand, beside: Operand, sums: Sums, kept: FloatArray, scores: FloatArray
) -> FloatArray:
    """Floor of x [K] times what it reads from the sum with `beside` [L], entrywise.

    `scores` [G, T, K] is that of scores, added up over lanes.
    """
    rest = sums.bound + sums.y[..., None] + 1.0
    rest = rest + (scores / beside.size.shape[2])[..., None]
    floor: FloatArray = x.size[..., None] * (beside.size[:, :, None] * kept + rest)
    return floor


def _earlier_floor(earlier: Earlier, sums: Sums, kept: FloatArray) -> FloatArray:
    """Floor of keys times cotangents of keys of the earlier tokens of each chunk."""
    rest = sums.bound + sums.y[..., None] + 1.0
    each = earlier.values[:, :, None] * kept + rest
    floor: FloatArray = earlier.keys[..., None] * each
    return floor + earlier.number[:, None, None]


def _from_the_end(add_up: Any, x: Any) -> Any:
    """`add_up` over this step and all later ones."""
    return add_up(x[:, ::-1], axis=1)[:, ::-1]
