"""Rung R1 for rank-one transitions: fp64 states with radii that are column norms.

A state of the scan is (S, radius, companions) as for diagonal transitions, with the
radius one 2-norm for each column, [G, 1, L], after the first tile.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.ops.normal_form import Cotangents, Lowered
from scancheck.oracles.ball import Ball
from scancheck.oracles.ball_contraction import BALLS
from scancheck.oracles.columns import (
    Columns,
    Known,
    Machine,
    Roundings,
    norms,
    run_back,
    run_columns,
)
from scancheck.oracles.contraction import contracted
from scancheck.oracles.units import FLOOR, U64

FloatArray = NDArray[np.float64]

ROUNDINGS = Roundings(u=U64, eta=FLOOR, decay=2, erase=3, write=2, total=2)


def forward(
    lowered: Lowered,
    state: tuple[FloatArray, ...],
    *,
    keep: bool,
    machine: Machine | None = None,
    kind: type[Ball] = Ball,
) -> tuple[Ball, tuple[FloatArray, ...], Ball | None]:
    """o, the next state, and all states of the tile when `keep`.

    Balls are of a `kind`, and scans run on a `machine`, that fit where arrays are.
    """
    s, companions = state[0].copy(), state[2]
    error = column_norms(state[1])
    operands = _operands(lowered, ("w", "p", "q", "k", "r"))
    operands["v"] = Known(*lowered.v.components)
    found = run_columns(operands, ROUNDINGS, s, error, keep=keep, machine=machine)
    states = _balls(found, kind) if keep else None
    return kind(*found.o), (s, error[:, None, :], companions), states


def adjoint(
    lowered: Lowered,
    states: Ball,
    obar: Ball,
    carry: Ball,
    machine: Machine | None = None,
    kind: type[Ball] = Ball,
) -> tuple[Cotangents, Ball]:
    """Cotangents of the tile, and the cotangent of the state before it."""
    groups, _, keys, lanes = states.shape
    operands = _operands(lowered, ("w", "p", "q", "r"))
    operands["bar"] = Known(*obar.components)
    value, radius = carry.components
    shape = groups, keys, lanes
    error = column_norms(radius)
    there = np.broadcast_to(value, shape)
    found = run_back(operands, ROUNDINGS, there, error, machine)
    g = _balls(found, kind)
    back = kind(g.value[:, 0].copy(), found.errors[:, 0, None, :].copy())
    if machine is None:
        return contracted(BALLS, lowered, states, obar, g[:, 1:]), back
    return cotangents_of(lowered, states, obar, g[:, 1:]), back


def cotangents_of(lowered: Lowered, states: Any, obar: Any, g: Any) -> Cotangents:
    """All cotangents from S_0 .. S_T [G, T + 1, K, L] and G_1 .. G_T [G, T, K, L]."""
    before, bar = states[:, :-1], obar[:, :, None, :]
    erased = (lowered.q * before).sum(2)[:, :, None, :]
    written = (lowered.p * g).sum(2)[:, :, None, :]
    return Cotangents(
        w=g * before,
        v=(lowered.k * g).sum(2),
        k=(g * lowered.v[:, :, None, :]).sum(3)[:, :, :, None],
        r=(states[:, 1:] * bar).sum(3)[:, :, :, None],
        p=(g * erased).sum(3)[:, :, :, None],
        q=(before * written).sum(3)[:, :, :, None],
    )


def operands_of(lowered: Lowered, numbers: Mapping[str, Known]) -> dict[str, Known]:
    """Values and radii [G, T, K] of numbers [G, T or 1, K or 1, 1]; w also [G, T, 1].

    Raises NotImplementedError where a value-side decay, or keys that differ between
    lanes, meet a rank-one transition.
    """
    groups, steps, keys, _ = lowered.p.shape
    found = {}
    for name, (value, radius) in numbers.items():
        if value.shape[3] != 1 or lowered.z is not None:
            raise NotImplementedError(
                f"{name}: expected one for all lanes beside a rank-one transition, and "
                "no value-side decay"
            )
        shape = groups, steps, 1 if name == "w" and value.shape[2] == 1 else keys
        parts = (np.broadcast_to(part[..., 0], shape) for part in (value, radius))
        found[name] = Known(*parts)
    return found


def column_norms(radius: FloatArray) -> FloatArray:
    """2-norms of radii [G, K, L] over the keys; [G, 1, L] are norms already."""
    return norms(radius, "gkl,gkl->gl", 1)


def _operands(lowered: Lowered, names: tuple[str, ...]) -> dict[str, Known]:
    parts = {name: Known(*getattr(lowered, name).components) for name in names}
    return operands_of(lowered, parts)


def _balls(found: Columns, kind: type[Ball]) -> Ball:
    """States, each entry with the norm of its column's error as its radius."""
    radius = np.broadcast_to(found.errors[:, :, None, :], found.states.shape)
    return kind(found.states, radius)
