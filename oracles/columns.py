"""States that a rank-one transition moves, their errors carried by column norms.

Operands are known to within radii, and each operation rounds. Whatever the order in
which a step is computed from its products, column by column and in 2-norms (numerics
2.10; Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1):

    |d(w S)|       <= n_w u max|w| |S|                the decay, and the sums after it
    |d(p (q^T S))| <= gamma(K + n_p) |p| |q| |S|      inner product, subtraction, beta
    |d(k v)|       <= gamma(n_k) |k| |v|
    |d(S_t)|       <= n_s u |S_t|                     the sums, and the store

and a transition that is off by D moves S + dS to A S + A dS + D (S + dS).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scancheck.oracles.column_scan import LANES, LOST, column_tasks
from scancheck.oracles.numbers import plain
from scancheck.oracles.threads import share
from scancheck.oracles.transition_norm import transition_norm

FloatArray = NDArray[np.float64]


class Known(NamedTuple):
    """Values and their radii, of one shape."""

    value: FloatArray
    radius: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Roundings:
    """What operations are charged."""

    u: float  # unit roundoff
    eta: float  # what one operation may lose below the normal range
    decay: int  # roundings of the decayed state
    erase: int  # roundings of the term that the rank-one part adds, beside K
    write: int  # roundings of the term that is written
    total: int  # roundings of the new state
    store: float = 0.0  # unit roundoff of the state's format


class Columns(NamedTuple):
    """A tile: readouts with errors, and states with the norms of their errors."""

    o: Known  # [G, T, L]
    reach: FloatArray  # [G, T, L]: norms of the columns and of their errors
    states: FloatArray  # [G, T + 1, K, L] where they were kept
    errors: FloatArray  # [G, T + 1, L]


class Machine(NamedTuple):
    """Where the loops of a scan run; all else is arithmetic on arrays, wherever."""

    scan: Callable[..., tuple[FloatArray, FloatArray, FloatArray]]  # as `scan_here`
    norm: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]


def gamma(count: float, u: float) -> float:
    """n u / (1 - n u), infinite from n u = 1 on (Higham 2002, section 3.1)."""
    return count * u / (1.0 - count * u) if count * u < 1.0 else np.inf


def run_columns(
    operands: Mapping[str, Known],
    roundings: Roundings,
    state: FloatArray,
    error: FloatArray,
    *,
    keep: bool,
    machine: Machine | None = None,
) -> Columns:
    """The tile of `operands`; `state` [G, K, L] and `error` [G, L] are moved on.

    w [G, T, K or 1], p, q, k, r [G, T, K], v [G, T, L].
    """
    machine = machine or HERE
    w, p, q, k, v, r = (operands[name] for name in "wpqkvr")
    u, keys = roundings.u, k.value.shape[2]
    p_size, q_size, k_size, r_size = (_norm(x.value) for x in (p, q, k, r))
    p_off, q_off, k_off, r_off = (_norm(x.radius) for x in (p, q, k, r))
    w_size, w_off = np.abs(w.value).max(-1), w.radius.max(-1)
    p_top, q_top, k_top = p_size + p_off, q_size + q_off, k_size + k_off
    off = w_off + p_off * q_top + p_size * q_off
    loss = gamma(roundings.decay, u) * (w_size + w_off) + off
    loss += gamma(keys + roundings.erase, u) * p_top * q_top
    v_size = np.abs(v.value)
    written = gamma(roundings.write, u) * k_top + k_off
    own = written[..., None] * (v_size + v.radius) + k_size[..., None] * v.radius
    # Of K + 8 operations on each entry, and of the inner product times p.
    floor = roundings.eta * np.sqrt(keys) * (8.0 + keys * (1.0 + p_top))
    own += floor[..., None]
    o, states, errors = machine.scan(
        (w.value, p.value, q.value, k.value, v.value, r.value),
        (
            machine.norm(w.value, p.value, q.value),
            loss,
            own,
            gamma(roundings.total, u) + roundings.store,
        ),
        (r_size + r_off, gamma(keys + 1, u) * r_size + r_off),
        state,
        error,
        keep=keep,
    )
    o[1] += keys * roundings.eta
    return Columns(Known(o[0], o[1]), o[2], states, errors)


def run_back(
    operands: Mapping[str, Known],
    roundings: Roundings,
    carry: FloatArray,
    error: FloatArray,
    machine: Machine | None = None,
) -> Columns:
    """G_1 .. G_T in entries 1 .. T of states, and in entry 0 the carry out.

    operands: w, p, q, r and obar, as `bar` [G, T, L]; `carry` [G, K, L] with `error`
    [G, L] comes into the last step. G_t = A_{t+1}^T G_{t+1} + r_t obar_t^T is the scan
    of the tile turned round, p and q changed, each transition a step later: first the
    identity, and at the end the first transition alone.
    """
    turned = {name: Known(*(x[:, ::-1] for x in operands[name])) for name in operands}
    w, p, q, r, bar = (turned[name] for name in ("w", "p", "q", "r", "bar"))
    given = {
        "w": _shifted(w, 1.0),
        "p": _shifted(q, 0.0),
        "q": _shifted(p, 0.0),
        "k": _shifted(r, 0.0, first=False),
        "v": _shifted(bar, 0.0, first=False),
    }
    given["r"] = Known(*(np.zeros_like(part) for part in given["k"]))
    found = run_columns(
        given, roundings, carry.copy(), error.copy(), keep=True, machine=machine
    )
    # Entry i + 1 of the turned scan is G_{T-i}; the last one is the carry.
    states, errors = found.states[:, :0:-1], found.errors[:, :0:-1]
    return Columns(found.o, found.reach, states, errors)


def scan_here(
    operands: tuple[FloatArray, ...],
    coefficients: tuple[FloatArray, FloatArray, FloatArray, float],
    reading: tuple[FloatArray, FloatArray],
    state: FloatArray,
    error: FloatArray,
    *,
    keep: bool,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Moves `state` and `error` on in place; o, states and errors of `column_tasks`.

    operands: w, p, q, k, v, r; coefficients: grow, loss, own, last; reading: read,
    read_loss, all as `column_tasks` has them.
    """
    w, p, q, k, v, r = map(plain, operands)
    grow, loss, own = map(plain, coefficients[:3])
    read, read_loss = map(plain, reading)
    groups, steps, keys = k.shape
    lanes = v.shape[2]
    o = np.empty((3, groups, steps, lanes))
    kept = steps + 1 if keep else 0
    states = np.empty((groups, kept, keys, lanes))
    errors = np.empty((groups, kept, lanes))
    if keep:
        states[:, 0], errors[:, 0] = state, error

    def run(begin: int, stop: int) -> None:
        column_tasks(
            begin, stop, w, p, q, k, v, r, grow, loss, own, coefficients[3],
            read, read_loss, state, error, o, states, errors,
            np.empty((keys + 5, LANES)),
        )  # fmt: skip

    share(groups * -(-lanes // LANES), groups * steps * keys * lanes, run)
    return o, states, errors


HERE = Machine(scan_here, transition_norm)


def _shifted(x: Known, filler: float, *, first: bool = True) -> Known:
    """One more step, of `filler` known exactly, at the start or at the end."""

    def longer(part: FloatArray, value: float) -> FloatArray:
        more = np.full_like(part[:, :1], value)
        return np.concatenate([more, part] if first else [part, more], 1)

    return Known(longer(x.value, filler), longer(x.radius, 0.0))


def norms(x: FloatArray, pattern: str, axis: int) -> FloatArray:
    """2-norms over an axis, or the sums of magnitudes where squares may underflow.

    `pattern` sums products so, in one pass where x is here; for arrays of a card that
    would be products of matrices, of a library that CuPy works without.
    """
    here = isinstance(x, np.ndarray)
    squares: FloatArray = np.einsum(pattern, x, x) if here else (x * x).sum(axis)
    small = squares < LOST
    if here and not small.any():
        return np.sqrt(squares)
    return np.where(small, np.abs(x).sum(axis), np.sqrt(squares))


def _norm(x: FloatArray) -> FloatArray:
    return norms(x, "...k,...k->...", -1)
