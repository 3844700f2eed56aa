"""Compiled loops over wide numbers: elementwise arithmetic, and the recurrence.

A number is four arrays: hi, lo, radius and exponent (`wide_word`).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.oracles import wide_word
from scancheck.oracles.jit import NO_ALLOCATION, jit

F = NDArray[np.float64]
Parts = tuple[NDArray[Any], ...]

_add = wide_word.add
_multiply = wide_word.multiply
_exp = wide_word.exp
_softplus = wide_word.softplus
_sigmoid = wide_word.sigmoid
_reciprocal = wide_word.reciprocal
_normal = wide_word.normal


@jit(**NO_ALLOCATION, forceinline=True)
def _at(x: Parts, i: int) -> wide_word.Wide:
    return x[0][i], x[1][i], x[2][i], x[3][i]


@jit(**NO_ALLOCATION, forceinline=True)
def _put_at(x: Parts, i: int, number: wide_word.Wide) -> None:
    x[0][i], x[1][i], x[2][i], x[3][i] = number


@jit(**NO_ALLOCATION)
def stored_all(values: F, z: Parts) -> None:
    """Stored values, of radius 0; minus infinity is kept for exp, which knows it."""
    for i in range(values.size):
        if values[i] == -np.inf:
            _put_at(z, i, (-np.inf, 0.0, 0.0, 0))
        else:
            _put_at(z, i, _normal(values[i], 0.0, 0.0, 0))


@jit(**NO_ALLOCATION)
def add_all(x: Parts, y: Parts, z: Parts) -> None:
    """x + y."""
    for i in range(z[0].size):
        _put_at(z, i, _add(*_at(x, i), *_at(y, i)))


@jit(**NO_ALLOCATION)
def multiply_all(x: Parts, y: Parts, z: Parts) -> None:
    """x y."""
    for i in range(z[0].size):
        _put_at(z, i, _multiply(*_at(x, i), *_at(y, i)))


@jit(**NO_ALLOCATION)
def exp_all(x: Parts, z: Parts) -> None:
    """exp(x)."""
    for i in range(z[0].size):
        _put_at(z, i, _exp(*_at(x, i)))


@jit(**NO_ALLOCATION)
def softplus_all(x: Parts, z: Parts) -> None:
    """log(1 + exp(x))."""
    for i in range(z[0].size):
        _put_at(z, i, _softplus(*_at(x, i)))


@jit(**NO_ALLOCATION)
def sigmoid_all(x: Parts, z: Parts) -> None:
    """1 / (1 + exp(-x))."""
    for i in range(z[0].size):
        _put_at(z, i, _sigmoid(*_at(x, i)))


@jit(**NO_ALLOCATION)
def reciprocal_all(x: Parts, z: Parts) -> None:
    """1 / x."""
    for i in range(z[0].size):
        _put_at(z, i, _reciprocal(*_at(x, i)))


@jit(**NO_ALLOCATION)
def _entry(x: Parts, g: int, t: int, k: int, lane: int) -> wide_word.Wide:
    """x[g, t, k, lane]; sizes of 1 are repeated."""
    shape = x[0].shape
    g = g if shape[0] > 1 else 0
    t = t if shape[1] > 1 else 0
    k = k if shape[2] > 1 else 0
    i = lane if shape[3] > 1 else 0
    return x[0][g, t, k, i], x[1][g, t, k, i], x[2][g, t, k, i], x[3][g, t, k, i]


@jit(**NO_ALLOCATION)
def _put(x: Parts, g: int, t: int, k: int, i: int, number: wide_word.Wide) -> None:
    """number as x[g, t, k, i]."""
    x[0][g, t, k, i], x[1][g, t, k, i], x[2][g, t, k, i], x[3][g, t, k, i] = number


@jit(**NO_ALLOCATION)
def scan(
    begin: int,
    stop: int,
    w: Parts,
    v: Parts,
    k: Parts,
    r: Parts,
    has_k: bool,
    has_r: bool,
    state: Parts,
    out: Parts,
    states: Parts,
) -> None:
    """Chains begin .. stop of a tile: fills `out`, moves `state`, keeps states.

    A chain is a group and a lane of it. w, k, r [G, T, K, L] (sizes may be 1), v and
    out [G, T, 1, L], state [G, 1, K, L]; states [G, T + 1, K, L], or of no steps when
    they are not wanted.
    """
    keys, lanes = state[0].shape[2:]
    keep = states[0].shape[1] > 0
    for chain in range(begin, stop):
        g, i = chain // lanes, chain % lanes
        if keep:
            for key in range(keys):
                _put(states, g, 0, key, i, _entry(state, g, 0, key, i))
        for t in range(v[0].shape[1]):
            total = (0.0, 0.0, 0.0, 0)
            value = _entry(v, g, t, 0, i)
            for key in range(keys):
                current = _entry(state, g, 0, key, i)
                drive = value
                if has_k:
                    drive = _multiply(*_entry(k, g, t, key, i), *value)
                decayed = _multiply(*_entry(w, g, t, key, i), *current)
                current = _add(*decayed, *drive)
                _put(state, g, 0, key, i, current)
                if keep:
                    _put(states, g, t + 1, key, i, current)
                if has_r:
                    read = _multiply(*_entry(r, g, t, key, i), *current)
                    total = _add(*total, *read)
            if not has_r:
                total = current
            _put(out, g, t, 0, i, total)
