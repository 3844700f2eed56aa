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
from scancheck.oracles.ball import Ball, exact_ball
from scancheck.oracles.engine import Solution, check_diagonal, solve
from scancheck.oracles.fp64_scan import cotangent_tile, lane_block, scan_tile
from scancheck.oracles.threads import share

FloatArray = NDArray[np.float64]


class Fp64System:
    """The compiled ball scan as a System of the engine.

    With `companions` the forward pass collects M, W and V readouts, one array
    [3, G, T, L] a tile, in `collected`.
    """

    def __init__(self, *, companions: bool = False) -> None:
        self.companions = companions
        self.collected: list[FloatArray] = []

    def constant(self, values: FloatArray) -> Ball:
        """Stored values as balls of radius zero."""
        return exact_ball(np.asarray(values, dtype=np.float64))

    def begin(self, state: Ball) -> Any:
        """Copies of S and its radius, and M_0 = |S_0|, W_0 = V_0 = 0."""
        s, rs = (
            np.array(part, dtype=np.float64, order="C") for part in state.components
        )
        extra = np.zeros((3 if self.companions else 0, *s.shape))
        if self.companions:
            extra[0] = np.abs(s)
        return s, rs, extra

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[Ball, Any, Any]:
        """o, the next state, and all states of the tile when `keep`."""
        check_diagonal(lowered)
        groups, keys, lanes = state[0].shape
        steps = lowered.v.shape[1]
        block = lane_block(groups, keys, lanes)
        arrays = (
            *_plain(lowered.w),
            *_plain(lowered.v[:, :, None, :]),
            *_plain(lowered.k),
            *_plain(lowered.r),
        )
        has_k, has_r = lowered.k is not None, lowered.r is not None
        s, rs, extra = (part.copy() for part in state)
        if keep:
            extra = extra[:0]
        outs = 4 if extra.shape[0] else 1
        make = np.zeros if has_r else np.empty
        o, ro = make((outs, groups, steps, lanes)), make((groups, steps, lanes))
        states = np.empty((steps + 1 if keep else 0, groups, keys, lanes))
        radii = np.empty_like(states)
        if keep:
            states[0], radii[0] = s, rs

        def run(begin: int, stop: int) -> None:
            scan_tile(
                begin, stop, block, *arrays, has_k, has_r, s, rs, extra, o, ro, states,
                radii,
            )

        share(groups * -(-lanes // block), steps * s.size, run)
        if extra.shape[0]:
            self.collected.append(o[1:])
        return Ball(o[0], ro), (s, rs, extra), Ball(states, radii) if keep else None

    def end(self, state: Any, total: int) -> Ball:
        """The final state."""
        return Ball(state[0], state[1])

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
        groups, keys, lanes = carry.shape
        steps = obar.shape[1]
        block = lane_block(groups, keys, lanes)
        w, rw = _plain(lowered.w)
        r, rr = _plain(lowered.r)
        bar, rbar = _plain(obar[:, :, None, :])
        g = np.empty((steps + 1, groups, keys, lanes))
        rg = np.empty_like(g)
        g[steps], rg[steps] = carry.components
        has_r = lowered.r is not None

        def run(begin: int, stop: int) -> None:
            cotangent_tile(
                begin, stop, block, w, rw, r, rr, has_r, bar, rbar, g, rg
            )

        share(groups * -(-lanes // block), steps * groups * keys * lanes, run)
        inside = Ball(g[1:], rg[1:]).transpose(1, 0, 2, 3)
        steps_first = states.transpose(1, 0, 2, 3)
        cotangents = contract(lowered, steps_first, obar, inside)
        return cotangents, Ball(g[0].copy(), rg[0].copy())

    def end_adjoint(self, carry: Ball) -> Ball:
        """The cotangent of the initial state."""
        return carry

    def reduced(self, number: Ball, terms: int) -> Ball:
        """Sums over tiles carry their own roundings."""
        return number


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


def _plain(x: Ball | None) -> tuple[FloatArray, FloatArray]:
    """Both components as C-ordered arrays; one repeated value as [1, 1, 1, 1]."""
    if x is None:
        return np.ones((1, 1, 1, 1)), np.zeros((1, 1, 1, 1))
    value, radius = (_contiguous(part) for part in x.components)
    return value, radius


def _contiguous(part: FloatArray) -> FloatArray:
    if part.size and not any(part.strides):
        return np.full((1, 1, 1, 1), part.flat[0])
    return np.ascontiguousarray(part)


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
    solution = solve(system, op, tensors, switches, cotangents)
    if not companions or not system.collected:
        return solution
    m, w, v = np.concatenate(system.collected, axis=2)
    return Solution(
        outputs=solution.outputs,
        gradients=solution.gradients,
        companions={"M": m, "W": w, "V": v},
    )
