"""The second moment of roundings as a System of the engine, its scan compiled.

    v_t = w^2 v_{t-1} + S_{t-1}^2 v(w) + (u w S_{t-1})^2 + (u S_t)^2      numerics 2.8

and (u_s S_{t-1})^2 more where the state is rounded into its own format first.

Operands of matrix products (numerics 2.7) are rounded one by one: keys and values on
the way into the state, (u k v)^2 each time, and where o_t = r_t^T S_t is read r_t and
S_t. Inside a chunk scores meet the values in place of S_t, each term rounded on its
own: as uncertain on average, but more where the terms cancel. So the larger one counts
of S_t^2 and of the squares of the chunk's terms and of the state carried into it.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.error_tile import pick
from scancheck.bounds.moment_number import MomentNumber, given_number
from scancheck.bounds.rules import Rules, Store
from scancheck.formats import round_array
from scancheck.ops.normal_form import Cotangents, Lowered
from scancheck.oracles.fp64 import contract
from scancheck.oracles.jit import jit
from scancheck.oracles.numbers import plain
from scancheck.oracles.systems import check_diagonal
from scancheck.oracles.threads import share

FloatArray = NDArray[np.float64]

# Squares of unit roundoffs (product, sum, state) and what underflow adds to each.
COEFFICIENTS = 6
PRODUCT, SUM, STATE, PRODUCT_FLOOR, SUM_FLOOR, STATE_FLOOR = range(COEFFICIENTS)


@jit()
def _step(s, v, w, wv, x, xv, c, boundary):
    """S <- w S + x and its moment."""
    if boundary:
        v += c[STATE] * s * s + c[STATE_FLOOR]
    p = w * s
    v = w * w * v + wv * (s * s + v) + c[PRODUCT] * p * p + c[PRODUCT_FLOOR]
    s = p + x
    return s, v + xv + c[SUM] * s * s + c[SUM_FLOOR]


@jit()
def _forward(w, x, r, has_r, s, c, cast, chunk, o, states, start, every, begin, stop):
    """Runs the tasks begin..stop of a tile, one for each group and lane.

    Arrays [2, ...] hold values and moments, s [3, G, K, L] in place: its third row sums
    the squares of the chunk's terms. `cast` is what a state as an operand adds to its
    moment, as a share of its square.
    """
    _, groups, keys, lanes = s.shape
    steps = x.shape[2]
    keep = states.shape[1] > 0
    for task in range(begin, stop):
        g, lane = task // lanes, task % lanes
        for k in range(keys):
            value, moment = s[0, g, k, lane], s[1, g, k, lane]
            squares = s[2, g, k, lane]
            if keep:
                states[0, 0, g, k, lane] = value
                states[1, 0, g, k, lane] = moment
            for t in range(steps):
                wt, xt = pick(w, g, t, k, lane), pick(x, g, t, k, lane)
                if (start + t) % chunk == 0:
                    squares = value * value
                squares = wt[0] * wt[0] * squares + xt[0] * xt[0]
                value, moment = _step(
                    value, moment, wt[0], wt[1], xt[0], xt[1], c,
                    (start + t) % every == 0,
                )  # fmt: skip
                if keep:
                    states[0, t + 1, g, k, lane] = value
                    states[1, t + 1, g, k, lane] = moment
                if has_r:
                    rt = pick(r, g, t, k, lane)
                    term = rt[0] * value
                    seen = moment + cast * max(value * value, squares)
                    o[0, g, t, lane] += term
                    o[1, g, t, lane] += (
                        rt[0] * rt[0] * seen
                        + rt[1] * (value * value + seen)
                        + c[PRODUCT] * term * term
                        + c[PRODUCT_FLOOR]
                    )
                    if k > 0:
                        total = o[0, g, t, lane]
                        o[1, g, t, lane] += c[SUM] * total * total + c[SUM_FLOOR]
                else:
                    o[0, g, t, lane], o[1, g, t, lane] = value, moment
            s[0, g, k, lane], s[1, g, k, lane] = value, moment
            s[2, g, k, lane] = squares


@jit()
def _adjoint(w, y, s, above, c, states, start, total, every, begin, stop):
    """Runs G_t = w_{t+1} G_{t+1} + y_t back, tasks as above; `above` [2, G, K, L]."""
    _, groups, keys, lanes = s.shape
    steps = y.shape[2]
    for task in range(begin, stop):
        g, lane = task // lanes, task % lanes
        for k in range(keys):
            value, moment = s[0, g, k, lane], s[1, g, k, lane]
            up, upv = above[0, g, k, lane], above[1, g, k, lane]
            for back in range(steps):
                t = steps - 1 - back
                yt = pick(y, g, t, k, lane)
                value, moment = _step(
                    value, moment, up, upv, yt[0], yt[1], c,
                    (total - 1 - (start + t)) % every == 0,
                )  # fmt: skip
                states[0, t, g, k, lane], states[1, t, g, k, lane] = value, moment
                wt = pick(w, g, t, k, lane)
                up, upv = wt[0], wt[1]
            s[0, g, k, lane], s[1, g, k, lane] = value, moment
            above[0, g, k, lane], above[1, g, k, lane] = up, upv


class MomentSystem:
    """Runs ops over moment numbers under one set of rules."""

    alike_when_kept = True
    general = False

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.lead = 0  # as that of ErrorSystem
        cast = rules.operand_cast
        self.cast = 0.0 if cast is None else cast.u**2
        self.coefficients = np.array(
            [
                0.0 if rules.fma else rules.u**2,
                rules.u**2,
                rules.state_u**2,
                2 * rules.eta**2,
                2 * rules.add_eta**2,
                2 * rules.state_eta**2,
            ]
        )

    def constant(self, values: FloatArray) -> MomentNumber:
        """Stored inputs, and an op's constants, which the compute format may round."""
        return given_number(self.rules, np.asarray(values, dtype=np.float64))

    def begin(self, state: MomentNumber) -> FloatArray:
        """Value, moment and square of the initial state, [3, G, K, L]."""
        return np.stack([*state.components, state.value**2])

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[MomentNumber, Any, Any]:
        """o [G, T, L], the state after the tile, and all states when `keep`."""
        check_diagonal(lowered)
        groups, keys, lanes = state.shape[1:]
        steps = lowered.v.shape[1]
        w = _packed(_cast(lowered.w, self.rules.decay_cast), groups, keys)
        lowered = self._operands(lowered)
        v = lowered.v[:, :, None, :]
        x = v if lowered.k is None else lowered.k * v
        s = state.copy()
        o = np.zeros((2, groups, steps, lanes))
        states = np.empty((2, steps + 1 if keep else 0, groups, keys, lanes))
        drive = _packed(_cast(x, self.rules.drive_cast), groups, keys)
        loop = partial(
            _forward, w, drive,
            _packed(lowered.r, groups, keys), lowered.r is not None, s,
            self._summed(total), self.cast, self.rules.structure.chunk or total, o,
            states, start - self.lead,
            self.rules.state_every,
        )  # fmt: skip
        share(groups * lanes, drive.size, loop)
        kept = MomentNumber(self.rules, *states) if keep else None
        return MomentNumber(self.rules, *o), s, kept

    def _operands(self, lowered: Lowered) -> Lowered:
        """The tile with keys, values and queries as they enter matrix products."""
        if self.rules.operand_cast is None:
            return lowered
        moved = lowered.w.value != 1.0
        decayed = bool(moved.any())
        return replace(
            lowered,
            k=_rounded(lowered.k, self.rules, decayed),
            v=_rounded(lowered.v, self.rules, decayed and lowered.w.shape[3] > 1),
            r=_rounded(lowered.r, self.rules, decayed),
        )

    def _summed(self, total: int) -> FloatArray:
        """The coefficients for sums of a chunk, or of so many steps.

        Truncated, n sums err towards zero together: (2 u)^2 (|s_1| + ... + |s_n|)^2 is
        at most n times what it is for errors of either sign.
        """
        rules, c = self.rules, self.coefficients
        if rules.sum_u == rules.u:
            return c
        c = c.copy()
        c[SUM] = rules.sum_u**2 * max(1, rules.structure.chunk or total)
        return c

    def _operand(self, number: MomentNumber) -> MomentNumber:
        """States or cotangents as operands."""
        return number.like(number.value, number.moment + self.cast * number.value**2)

    def end(self, state: Any, total: int) -> MomentNumber:
        """The final state, stored in the state's format."""
        return MomentNumber(self.rules, *state[:2]).stored(self.rules.state_store)

    def begin_adjoint(self, state: MomentNumber) -> Any:
        """The final state's cotangent, and a decay of one above the end."""
        one = np.stack([np.ones(state.shape), np.zeros(state.shape)])
        return self.begin(state), one

    def adjoint(
        self,
        lowered: Lowered,
        states: MomentNumber,
        obar: MomentNumber,
        carry: Any,
        start: int,
        total: int,
    ) -> tuple[Cotangents, Any]:
        """Cotangents of the tile, by the explicit adjoint."""
        s, above = carry[0].copy(), carry[1].copy()
        groups, keys, lanes = s.shape[1:]
        w = _packed(_cast(lowered.w, self.rules.decay_cast), groups, keys)
        lowered = self._operands(lowered)
        if self.rules.operand_cast is not None:
            obar = _rounded(obar, self.rules, False)
        bar = obar[:, :, None, :]
        y = _packed(bar if lowered.r is None else lowered.r * bar, groups, keys)
        g = np.empty((2, obar.shape[1], groups, keys, lanes))
        loop = partial(
            _adjoint,
            w,
            y,
            s,
            above,
            self._summed(total),
            g,
            start - self.lead,
            total - 2 * self.lead,
            self.rules.state_every,
        )
        share(groups * lanes, y.size, loop)
        inside = self._operand(MomentNumber(self.rules, *g).transpose(1, 0, 2, 3))
        seen = _cast(states.transpose(1, 0, 2, 3), self.rules.saved_cast)
        seen = self._operand(seen)
        return contract(lowered, seen, obar, inside), (s, above)

    def end_adjoint(self, carry: Any) -> MomentNumber:
        """w_1 G_1, the cotangent of the initial state."""
        state, above = carry
        return self.end(state, 0) * MomentNumber(self.rules, *above)

    def reduced(self, number: MomentNumber, terms: int) -> MomentNumber:
        """Sums over tiles carry their own roundings."""
        return number


def _rounded(x: MomentNumber, rules: Rules, decayed: bool) -> MomentNumber:
    """Operands of matrix products: rounded where computed and again where decayed."""
    cast = rules.operand_cast
    assert cast is not None
    exact = x.moment == 0.0
    held = round_array(rules.operands, x.value) == x.value
    times = (~exact).astype(np.float64) + (decayed | (exact & ~held))
    own = (cast.u * x.value) ** 2 + 2 * cast.eta**2
    return x.like(x.value, x.moment + times * own)


def _cast(x: MomentNumber, cast: Store | None) -> MomentNumber:
    return x if cast is None else x.stored(cast)


def _packed(x: MomentNumber | None, groups: int, keys: int) -> FloatArray:
    """[2, G, T, K, L or 1] with groups and keys written out."""
    if x is None:
        return np.zeros((2, 1, 1, 1, 1))
    shape = (groups, x.shape[1], keys, x.shape[3])
    return plain(np.stack([np.broadcast_to(p, shape) for p in x.components]))
