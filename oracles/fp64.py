"""Rung R1: the scan and its adjoint in fp64 balls, compiled, with companion scans.

Beside the state S and its radius the forward pass can carry the companions of
numerics 2.2 and 2.8 (t runs over steps, all terms non-negative):

    M_t = |w_t| M_{t-1} + |x_t|                       sum of magnitudes
    W_t = |w_t| (W_{t-1} + M_{t-1})                   magnitudes weighted by age
    V_t = w_t^2 V_{t-1} + (w_t S_{t-1})^2 + S_t^2     second moment of roundings

and reads them out as sum |r| M, sum |r| W and sum r^2 V beside o = sum r S.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.ops.normal_form import Cotangents, Lowered, Op
from scancheck.oracles import rank_one
from scancheck.oracles.ball import Ball
from scancheck.oracles.ball_contraction import BALLS
from scancheck.oracles.contraction import contracted, contracts
from scancheck.oracles.engine import Solution, solve
from scancheck.oracles.fp64_tile import TileScan, cotangents_of_states
from scancheck.oracles.systems import check_diagonal
from scancheck.oracles.tile_ball import PlacedBall, TileBall, exact_tile_ball

FloatArray = NDArray[np.float64]

FORWARD_STRETCH = 4
NOWHERE = np.empty((3, 0, 0, 0))


class Fp64System:
    """The compiled ball scan as a System of the engine.

    With `companions` the forward pass collects the readouts of M, W and V,
    [3, G, T, L], in `collected`.
    """

    general = False

    def __init__(self, *, companions: bool = False) -> None:
        self.companions = companions
        self.collected = NOWHERE
        self.whole = NOWHERE

    @property
    def alike_when_kept(self) -> bool:
        """Companions are not collected beside kept states."""
        return not self.companions

    def constant(self, values: FloatArray) -> Ball:
        """Stored values as balls of radius zero."""
        return exact_tile_ball(np.asarray(values, dtype=np.float64))

    def begin(self, state: Ball) -> Any:
        """S, its radius, and the companions: M_0 = |S_0|, W_0 = V_0 = 0."""
        s, rs = (np.asarray(part, dtype=np.float64) for part in state.components)
        nothing = np.zeros_like(s)
        return s, rs, np.stack([np.abs(s), nothing, nothing])

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[Ball, Any, Any]:
        """o, the next state, and all states of the tile when `keep`."""
        if lowered.p is not None:
            return rank_one.forward(lowered, state, keep=keep)
        check_diagonal(lowered)
        moved = np.concatenate([*(part[None] for part in state[:2]), state[2]])
        companions = NOWHERE
        if self.companions and not keep:
            companions = self._room(lowered, total, start)
        groups, steps, lanes = lowered.v.shape
        place, room = 0, (2, groups, total, lanes)
        # Compiled loops check no index: a scan that starts midway needs its own room.
        fits = start + steps <= total and (start == 0 or self.whole.shape == room)
        if lowered.r is None and not keep and fits:
            # The readout is the state: it is written where it will stay.
            if start == 0:
                self.whole = np.empty(room)
            o, place = self.whole, start
        else:
            o = np.empty((2, groups, steps, lanes))
        scan = TileScan(lowered, moved, o, place, companions, start, keep=keep)
        scan.run()
        after = moved[0], moved[1], moved[2:]
        out = PlacedBall(o, place, steps) if o is self.whole else TileBall(*o)
        return out, after, Ball(*scan.states) if keep else None

    def _room(self, lowered: Lowered, total: int, start: int) -> FloatArray:
        """Where the readouts of the companions go, [3, G, all steps, L]."""
        if start == 0:
            groups, _, lanes = lowered.v.shape
            self.collected = np.empty((3, groups, total, lanes))
        return self.collected

    def end(self, state: Any, total: int) -> Ball:
        """The final state."""
        return Ball(state[0], np.broadcast_to(state[1], state[0].shape))

    def begin_adjoint(self, state: Ball) -> Ball:
        """The cotangent of the final state."""
        return state

    def adjoint(
        self,
        lowered: Lowered,
        states: Ball,
        obar: Ball,
        carry: Ball,
        start: int,
        total: int,
    ) -> tuple[Cotangents, Ball]:
        """Cotangents of the tile; products and sums over the compiled G_t."""
        if lowered.p is not None:
            return rank_one.adjoint(lowered, states, obar, carry)
        g = cotangents_of_states(lowered, obar, carry)
        inside = Ball(g[0, 1:], g[1, 1:]).transpose(1, 0, 2, 3)
        steps_first = states.transpose(1, 0, 2, 3)
        cotangents = cotangents_of_balls(lowered, steps_first, obar, inside)
        return cotangents, Ball(g[0, 0].copy(), g[1, 0].copy())

    def end_adjoint(self, carry: Ball) -> Ball:
        """The cotangent of the initial state."""
        value, radius = carry.components
        return Ball(value, np.broadcast_to(radius, value.shape))

    def reduced(self, number: Ball, terms: int) -> Ball:
        """Sums over tiles carry their own roundings."""
        return number


def cotangents_of_balls(lowered: Lowered, states: Any, obar: Any, g: Any) -> Cotangents:
    """`contract`, in one pass where keys and readouts are the same for all lanes."""
    if contracts(lowered):
        return contracted(BALLS, lowered, states, obar, g)
    return contract(lowered, states, obar, g)


def contract(lowered: Lowered, states: Any, obar: Any, g: Any) -> Cotangents:
    """Cotangents of w, v, k, r from S_0..S_T [G, T + 1, K, L] and G_1..G_T."""
    before, after = states[:, :-1], states[:, 1:]
    kbar = rbar = None
    if lowered.k is None:
        vbar = g[:, :, 0, :]
    else:
        kbar = _fold(g * lowered.v[:, :, None, :], lowered.k)
        vbar = (lowered.k * g).sum(2)
    if lowered.r is not None:
        rbar = _fold(after * obar[:, :, None, :], lowered.r)
    return Cotangents(w=g * before, v=vbar, k=kbar, r=rbar)


def _fold(x: Any, like: Any) -> Any:
    """[G, T, K, L] summed over lanes where `like` has one lane for all."""
    return x.sum(3)[:, :, :, None] if like.shape[3] == 1 else x


def solve_fp64(
    op: Op,
    tensors: dict[str, FloatArray],
    switches: dict[str, bool],
    cotangents: dict[str, FloatArray] | None = None,
    *,
    companions: bool = False,
) -> Solution:
    """Balls for all outputs (and gradients), and companions M, W, V as [G, T, L]."""
    system = Fp64System(companions=companions)
    # Forwards few arrays are as large as all states of a tile: longer tiles save calls.
    stretch = FORWARD_STRETCH if cotangents is None else 1
    solution = solve(system, op, tensors, switches, cotangents, stretch=stretch)
    if not companions:
        return solution
    m, w, v = system.collected
    return Solution(
        outputs=solution.outputs,
        gradients=solution.gradients,
        companions={"M": m, "W": w, "V": v},
    )
