"""Rank-one transitions step by step in double-double, errors carried by column norms.

Each step is taken from the state as if it were exact: the radii that come out are what
the step itself lost, and what operands were off by. The 2-norm of a column's error then
grows by the norm of the transition (transition_norm.py), where radii carried entry by
entry would grow without end.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.ops.normal_form import Cotangents, Lowered
from scancheck.oracles.columns import norms
from scancheck.oracles.double_word import FLOOR
from scancheck.oracles.numbers import stack
from scancheck.oracles.rank_one import column_norms, cotangents_of
from scancheck.oracles.transition_norm import transition_norm

FloatArray = NDArray[np.float64]

# Radii are computed without directed rounding: norms of K entries, and sums of them.
UPWARD = 1.0 + 1e-12


def forward(lowered: Lowered, state: Any) -> tuple[Any, Any, Any]:
    """o [G, T, L], the last state [G, K, L], and all states [G, T + 1, K, L].

    `state` and what is returned are double-doubles; the radius of a state's entry is
    the norm of its column's error.
    """
    growth = _growth(lowered)
    error = _errors(state)
    states, outs = [_with(state, error)], []
    for t in range(lowered.v.shape[1]):
        before = _exact(states[-1])
        read = (lowered.q[:, t] * before).sum(1)
        moved = lowered.w[:, t] * before + lowered.p[:, t] * read[:, None, :]
        new = moved + lowered.k[:, t] * lowered.v[:, t, None, :]
        error = _grown(growth[:, t, None], error, _errors(new))
        states.append(_with(new, error))
        outs.append((lowered.r[:, t] * states[-1]).sum(1))
    o = stack(outs, 1) if outs else lowered.v
    return o, states[-1], stack(states, 1)


def adjoint(
    lowered: Lowered, states: Any, obar: Any, carry: Any
) -> tuple[Cotangents, Any]:
    """Cotangents of the tile, and the cotangent of the state before it."""
    growth = _growth(lowered)
    error, inside = _errors(carry), []
    for t in reversed(range(lowered.v.shape[1])):
        g = _exact(carry) + lowered.r[:, t] * obar[:, t, None, :]
        error = (error + _errors(g)) * UPWARD
        inside.append(_with(g, error))
        bare = _exact(g)
        written = (lowered.p[:, t] * bare).sum(1)
        back = lowered.w[:, t] * bare + lowered.q[:, t] * written[:, None, :]
        error = _grown(growth[:, t, None], error, _errors(back))
        carry = _with(back, error)
    return cotangents_of(lowered, states, obar, stack(inside[::-1], 1)), carry


def _grown(growth: FloatArray, error: FloatArray, own: FloatArray) -> FloatArray:
    """The error after a step that loses `own`; below the normal range products lose."""
    lost = np.where(error > 0.0, FLOOR, 0.0)
    grown: FloatArray = (growth * error + own) * UPWARD + lost
    return grown


def _growth(lowered: Lowered) -> FloatArray:
    """||A_t||, what operands are off by included, [G, T]."""
    groups, steps, keys, _ = lowered.p.shape
    w, p, q = lowered.w, lowered.p, lowered.q
    wide = np.broadcast_to(w.hi[..., 0], (groups, steps, w.shape[2]))
    off = np.broadcast_to(w.radius[..., 0], wide.shape).max(-1, initial=0.0)
    p_size, q_size, p_off, q_off = (
        norms(x[..., 0], "...k,...k->...", -1) for x in (p.hi, q.hi, p.radius, q.radius)
    )
    off = off + p_off * (q_size + q_off) + p_size * q_off
    # hi is the value to 2**-53, which the norm's own margin takes in.
    found: FloatArray = (
        transition_norm(wide, p.hi[..., 0], q.hi[..., 0]) + off
    ) * UPWARD
    return found


def _exact(number: Any) -> Any:
    return number.like(number.hi, number.lo, np.zeros_like(number.hi))


def _errors(number: Any) -> FloatArray:
    """Norms of the radii of columns, [G, L]."""
    return column_norms(np.broadcast_to(number.radius, number.hi.shape)) * UPWARD


def _with(number: Any, error: FloatArray) -> Any:
    radius = np.broadcast_to(error[:, None, :], number.hi.shape)
    return number.like(number.hi, number.lo, radius)
