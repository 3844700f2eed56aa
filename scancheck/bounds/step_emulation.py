"""What a contract's roundings do to the steps of a rank-one recurrence, drawn.

As contract_emulation.py does for chunks: the steps run a few times in fp64, each
rounding a factor of 1 + 0.736 u U[-1, 1] (numerics 2.8). A delta rule's step is the one
that kernels take,

    S' = w S,   e = beta (v - S'^T k),   S = S' + k e^T,

and any other one is w S + p (q^T S)^T + k v^T.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.error_number import ErrorNumber
from scancheck.bounds.rank_one_system import RankOneErrorSystem
from scancheck.bounds.rules import Rules
from scancheck.ops.normal_form import Lowered
from scancheck.oracles.jit import NO_ALLOCATION, jit
from scancheck.oracles.threads import share

FloatArray = NDArray[np.float64]

DRAWS = 6
REACH = math.sqrt(0.541)  # 0.736: of a uniform factor with the right mean square
SEED = 20240611  # the draws are the same in every run


class EmulatedSteps(RankOneErrorSystem):
    """Runs the steps of an op; the `error` of its numbers is a root mean square.

    A state is [1 + DRAWS, G, K, L], the first one without roundings.
    """

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self.source = np.random.default_rng(SEED)

    def begin(self, state: ErrorNumber) -> FloatArray:
        """The same state for all."""
        return np.repeat(state.value[None], 1 + DRAWS, 0)

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[ErrorNumber, Any, Any]:
        """o [G, T, L] and the state after the tile."""
        rules, s = self.rules, state.copy()
        _, groups, keys, lanes = s.shape
        steps = lowered.v.shape[1]
        # An op of a user's may erase without telling key and strength apart.
        told = lowered.key is not None and lowered.strength is not None
        erases = lowered.erases_decayed and told
        drive = self._cast(lowered.v, rules.drive_cast)
        w = self.drawn(self._cast(lowered.w, rules.decay_cast), (groups, steps, keys))
        r = self.drawn(lowered.r, (groups, steps, keys))
        v = self.drawn(drive[:, :, None, :], (groups, steps, 1, lanes))
        exact = (
            (lowered.key, lowered.key, lowered.key)
            if erases
            else (lowered.p, lowered.q, lowered.k)
        )
        rows = (_rows(x, (groups, steps, keys)) for x in exact)
        beta = np.ones((groups, steps))
        if erases:
            beta = _rows(lowered.strength, (groups, steps, 1))[:, :, 0]
        o = np.empty((1 + DRAWS, groups, steps, lanes))
        reaches = rules.u * REACH, rules.state_u * REACH
        given: tuple[Any, ...] = (w, *rows, np.ascontiguousarray(beta), v[:, :, :, 0])
        given += (r, erases, *reaches, rules.state_every, start, s, o)

        def run(begin: int, stop: int) -> None:
            _steps(begin, stop, *given)

        tasks = (1 + DRAWS) * groups * lanes
        share(tasks, tasks * steps * keys, run)
        return of_draws(rules, o), s, None

    def end(self, state: Any, total: int) -> ErrorNumber:
        """The final state, stored in the state's format."""
        stored = state + drawn_noise(self.source, self.rules.state_u * np.abs(state))
        return of_draws(self.rules, stored)

    def drawn(self, number: ErrorNumber, shape: tuple[int, ...]) -> FloatArray:
        """A number of the tile in each draw, off by its error, [1 + DRAWS, ...]."""
        value, error = (_rows(x, shape) for x in (number.value, number.error))
        every = np.repeat(value[None], 1 + DRAWS, 0)
        return every + drawn_noise(self.source, np.repeat(error[None], 1 + DRAWS, 0))


def drawn_noise(source: np.random.Generator, size: FloatArray) -> FloatArray:
    """`size` [1 + DRAWS, ...] times a rounding of size 1; none for the first draw."""
    found: FloatArray = REACH * source.uniform(-1.0, 1.0, size.shape) * size
    found[0] = 0.0
    return found


def of_draws(rules: Rules, values: FloatArray) -> ErrorNumber:
    """The first of [1 + DRAWS, ...], and the root mean square of the others' errors."""
    exact = values[0]
    off = np.sqrt(((values[1:] - exact) ** 2).mean(0))
    return ErrorNumber(rules, exact, np.abs(exact), off, np.abs(exact))


def _rows(x: Any, shape: tuple[int, ...]) -> FloatArray:
    """[G, T or 1, K or 1, 1] as [G, T, K]; lanes stay where `shape` has them."""
    values: FloatArray = getattr(x, "value", x)
    if len(shape) == 3:
        values = values[..., 0]
    return np.ascontiguousarray(np.broadcast_to(values, shape))


@jit(**NO_ALLOCATION)
def _steps(begin, stop, w, p, q, k, beta, v, r, erases, u, state_u, every, start, s, o):
    """Runs the tasks begin..stop: a draw, a group and a lane each.

    w, r [D, G, T, K], p, q, k [G, T, K], beta [G, T], v [D, G, T, L]; s [D, G, K, L] is
    moved on in place, o [D, G, T, L] receives what is read. u and state_u are the reach
    of a uniform rounding.
    """
    _, groups, keys, lanes = s.shape
    steps = v.shape[2]
    for task in range(begin, stop):
        d, rest = task // (groups * lanes), task % (groups * lanes)
        g, lane = rest // lanes, rest % lanes
        unit, store = (u, state_u) if d > 0 else (0.0, 0.0)
        x = np.uint64(SEED + 1) * np.uint64(2 * (task + (start + 1) * 1000003) + 1)
        for t in range(steps):
            if store > 0.0 and (start + t) % every == 0:
                for i in range(keys):
                    x = _next(x)
                    s[d, g, i, lane] *= 1.0 + store * _uniform(x)
            seen, squares = 0.0, 0.0
            for i in range(keys):
                if erases:
                    x = _next(x)
                    s[d, g, i, lane] *= w[d, g, t, i] * (1.0 + unit * _uniform(x))
                term = q[g, t, i] * s[d, g, i, lane]
                seen += term
                squares += term * term
            x = _next(x)
            seen += unit * _uniform(x) * _of_sum(keys, squares, seen)
            value = v[d, g, t, lane]
            if erases:
                x = _next(x)
                value = (value - seen) * (1.0 + unit * _uniform(x))
                x = _next(x)
                value *= beta[g, t] * (1.0 + unit * _uniform(x))
            read, squares = 0.0, 0.0
            for i in range(keys):
                x = _next(x)
                new = k[g, t, i] * value * (1.0 + unit * _uniform(x))
                if erases:
                    new += s[d, g, i, lane]
                else:
                    x = _next(x)
                    moved = w[d, g, t, i] * s[d, g, i, lane]
                    moved *= 1.0 + unit * _uniform(x)
                    x = _next(x)
                    moved += p[g, t, i] * seen * (1.0 + unit * _uniform(x))
                    x = _next(x)
                    new += moved * (1.0 + unit * _uniform(x))
                x = _next(x)
                new *= 1.0 + unit * _uniform(x)
                s[d, g, i, lane] = new
                term = r[d, g, t, i] * new
                read += term
                squares += term * term
            x = _next(x)
            o[d, g, t, lane] = read + unit * _uniform(x) * _of_sum(keys, squares, read)


@jit(**NO_ALLOCATION)
def _of_sum(terms, squares, total):
    """The root mean square of partial sums and products, over a rounding's.

    Of n terms in order they have squares that add up to about n / 2 times those of the
    terms where signs vary, and n / 3 times that of the sum where they do not.
    """
    return np.sqrt(0.5 * terms * squares + terms / 3.0 * total * total)


@jit(**NO_ALLOCATION)
def _next(x):
    """Xorshift (Marsaglia, "Xorshift RNGs", J. Statistical Software 8, 2003)."""
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    return x


@jit(**NO_ALLOCATION)
def _uniform(x):
    """In -1 .. 1."""
    return np.float64(x >> np.uint64(11)) * 2.0**-52 - 1.0
