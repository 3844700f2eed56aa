"""The normal form step by step in model arithmetic, one rounded operation at a time.

    D_t = diag(w_t) S_{t-1} diag(z_t)                     w, z absent where they are one
    S_t = D_t + k_t v_t^T                                 nothing is erased
    S_t = D_t + k_t (beta_t (v_t - D_t^T k_t))^T          the delta rule
    S_t = (D_t + left_t (right_t^T S_{t-1})) + k_t v_t^T  rank one, undecayed state read
    o_t = S_t^T r_t, or (S_{t-1} + diag(bonus) k_t v_t^T)^T r_t

These are the transitions diag(w) + p q^T of scancheck.ops.normal_form, with p = -beta k
and q = w k in the delta rule (Yang et al., "Gated Delta Networks", 2024) and p = left,
q = right in RWKV-7 (Peng et al., 2025). The bonus is RWKV-6's (Peng et al., 2024).

Every sum over keys or lanes ascends. Arrays have time in front; K keys, L lanes and any
axes between time and these. A state is [..., K, L].
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from scancheck.kernels.models.algorithm import Algorithm
from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.reduction import ascending_sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a recurrence, or their cotangents in the same shapes."""

    keys: Array  # k, [T, ..., K]
    values: Array  # v, [T, ..., L]
    reads: Array  # r, [T, ..., K]
    decay: Array | None = None  # w, [T, ..., K], or [T, ..., 1] for all keys
    value_decay: Array | None = None  # z, [T, ..., L]; not together with `left`
    beta: Array | None = None  # of the delta rule, [T, ..., 1]
    left: Array | None = None  # [T, ..., K], not together with beta
    right: Array | None = None  # [T, ..., K], with `left`
    bonus: Array | None = None  # [T, ..., K]; with it, outputs read before the update


NAMES = tuple(field.name for field in fields(Steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What one step makes of a state on the way; its adjoint needs it again."""

    key_decayed: Array  # diag(w) S, [..., K, L]
    decayed: Array  # D, [..., K, L]
    value: Array  # what is written along k, [..., L]
    error: Array | None = None  # v - D^T k, [..., L]
    seen: Array | None = None  # right^T S, [..., L]


def at(steps: Steps, t: int) -> Steps:
    """One step, without its axis of time."""
    taken: dict[str, Any] = {}
    for name in NAMES:
        x = getattr(steps, name)
        taken[name] = None if x is None else x[t]
    return Steps(**taken)


def outer(arithmetic: Arithmetic, x: Array, y: Array) -> Array:
    """x y^T, [..., K, L] from [..., K] and [..., L]."""
    return arithmetic.mul(x[..., :, None], y[..., None, :])


def over_keys(arithmetic: Arithmetic, x: Array, state: Array) -> Array:
    """state^T x, [..., L] from x [..., K]: products, then their sum from key 0."""
    return ascending_sum(arithmetic, arithmetic.mul(x[..., :, None], state), -2)


def over_lanes(arithmetic: Arithmetic, state: Array, y: Array) -> Array:
    """state y, [..., K] from y [..., L]: products, then their sum from lane 0."""
    return ascending_sum(arithmetic, arithmetic.mul(state, y[..., None, :]), -1)


def written(arithmetic: Arithmetic, step: Steps, state: Array) -> Written:
    """The decay of a state and the value that the step adds to it."""
    key_decayed, value = state, step.values
    if step.decay is not None:
        key_decayed = arithmetic.mul(step.decay[..., :, None], state)
    decayed = key_decayed
    if step.value_decay is not None:
        decayed = arithmetic.mul(key_decayed, step.value_decay[..., None, :])
    error = seen = None
    if step.beta is not None:
        found = over_keys(arithmetic, step.keys, decayed)
        error = arithmetic.sub(step.values, found)
        value = arithmetic.mul(step.beta, error)
    if step.right is not None:
        seen = over_keys(arithmetic, step.right, state)
    return Written(
        key_decayed=key_decayed, decayed=decayed, value=value, error=error, seen=seen
    )


def updated(arithmetic: Arithmetic, step: Steps, state: Array) -> Array:
    """S_t from S_{t-1}, which may be an initial state of a wider format."""
    made = written(arithmetic, step, state)
    kept = made.decayed
    if step.left is not None:
        assert made.seen is not None
        kept = arithmetic.add_wider(kept, outer(arithmetic, step.left, made.seen))
    return arithmetic.add_wider(kept, outer(arithmetic, step.keys, made.value))


def with_bonus(arithmetic: Arithmetic, step: Steps, state: Array) -> Array:
    """What a step with a bonus reads: S_{t-1} + diag(bonus) k v^T."""
    assert step.bonus is not None
    drive = outer(arithmetic, step.keys, step.values)
    boosted = arithmetic.mul(step.bonus[..., :, None], drive)
    return arithmetic.add_wider(state, boosted)


def states_of(
    arithmetic: Arithmetic, algorithm: Algorithm, steps: Steps, initial: Array
) -> Iterator[tuple[Array, Array]]:
    """(S_{t-1} as the step starts from it, S_t) of one step after another.

    The carried state is rounded to `algorithm.state` before step `state_every` (counted
    from 0) and every multiple of it; the S_t given out is not.
    """
    state = initial
    for t in range(len(steps.keys)):
        if t > 0:
            state = stored(arithmetic, algorithm, state, t)
        after = updated(arithmetic, at(steps, t), state)
        yield state, after
        state = after


def stored(
    arithmetic: Arithmetic, algorithm: Algorithm, state: Array, done: int
) -> Array:
    """A state carried on after `done` steps, rounded where the algorithm says so."""
    if algorithm.state is None or done % algorithm.state_every:
        return state
    return arithmetic.cast(algorithm.state, state)


def outputs(
    arithmetic: Arithmetic, algorithm: Algorithm, steps: Steps, initial: Array
) -> tuple[Array, Array]:
    """o [T, ..., L] and the final state [..., K, L]."""
    o = np.empty_like(steps.values)
    final = initial
    states = states_of(arithmetic, algorithm, steps, initial)
    for t, (before, after) in enumerate(states):
        step = at(steps, t)
        read = after
        if step.bonus is not None:
            read = with_bonus(arithmetic, step, before)
        o[t] = over_keys(arithmetic, step.reads, read)
        final = after
    return o, final
