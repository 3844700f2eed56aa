"""The adjoint of the step form: its recurrence run backwards in the same arithmetic.

With G_t the cotangent of S_t (numerics 2.9, explicit adjoint), and D, e = v - D^T k as
in step_form:

    G_t += r obar^T        dr = S_t obar                       read after the update
    written value x:       dk = G x          dx = G^T k
    delta rule, x = beta e:  dbeta = dx . e    de = beta dx = dv
                             dk -= D de        dD = G - k de^T
    rank one:              dseen = G^T left  dleft = G seen    dright = S_{t-1} dseen
    dz = sum_K dD (diag(w) S_{t-1})          dw = sum_L (dD diag(z)) S_{t-1}
    G_{t-1} = diag(w) dD diag(z) + right dseen^T
    read before the update, from R = S_{t-1} + diag(bonus) k v^T:
        dr = R obar        G_{t-1} += r obar^T        dR goes to k, v and bonus too
"""

from dataclasses import dataclass, fields, replace

import numpy as np

from scancheck.kernels.models.algorithm import Algorithm
from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.reduction import ascending_sum
from scancheck.kernels.models.step_form import (
    Steps,
    at,
    outer,
    over_keys,
    over_lanes,
    states_of,
    stored,
    with_bonus,
    written,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Back:
    """What one step backwards gives."""

    state: Array  # the cotangent of S_{t-1}, [..., K, L]
    steps: Steps  # those of the step's own numbers, without time


def adjoint(
    arithmetic: Arithmetic,
    algorithm: Algorithm,
    steps: Steps,
    initial: Array,
    obar: Array,
    final_bar: Array,
) -> tuple[Steps, Array]:
    """The cotangents of the steps, and that of the initial state [..., K, L].

    `obar` is [T, ..., L]. All states are computed again and kept. The cotangent carried
    back is rounded to `algorithm.state` as the state is, counted from the end.
    """
    states = list(states_of(arithmetic, algorithm, steps, initial))
    bars = _empty(steps)
    carried = final_bar
    for t in reversed(range(len(states))):
        before, after = states[t]
        back = _step_back(arithmetic, at(steps, t), before, after, obar[t], carried)
        for name, values in bars.items():
            values[t] = getattr(back.steps, name)
        carried = back.state
        if t > 0:
            carried = stored(arithmetic, algorithm, carried, len(states) - t)
    return Steps(**bars), carried


def _empty(steps: Steps) -> dict[str, Array]:
    given = {field.name: getattr(steps, field.name) for field in fields(Steps)}
    del given["log_decay"]  # the step form has the decay itself
    # A decay constant in time is a broadcast view; its cotangent is not.
    return {n: np.empty(x.shape, x.dtype) for n, x in given.items() if x is not None}


def _step_back(
    arithmetic: Arithmetic,
    step: Steps,
    before: Array,
    after: Array,
    obar: Array,
    carried: Array,
) -> _Back:
    if step.bonus is not None:
        back = _through_update(arithmetic, step, before, carried)
        return _through_read_before(arithmetic, step, before, obar, back)
    # The cotangent of the final state may be of a wider format.
    state_bar = arithmetic.add_wider(carried, outer(arithmetic, step.reads, obar))
    back = _through_update(arithmetic, step, before, state_bar)
    reads = over_lanes(arithmetic, after, obar)
    return replace(back, steps=replace(back.steps, reads=reads))


def _through_update(
    arithmetic: Arithmetic, step: Steps, before: Array, state_bar: Array
) -> _Back:
    """From the cotangent of S_t; that of the read-out is not yet there."""
    mul, sub = arithmetic.mul, arithmetic.sub
    made = written(arithmetic, step, before)
    keys = over_lanes(arithmetic, state_bar, made.value)
    values = over_keys(arithmetic, step.keys, state_bar)
    beta = left = right = seen = None
    decayed_bar = state_bar
    if step.beta is not None:
        assert made.error is not None
        products = mul(values, made.error)
        beta = ascending_sum(arithmetic, products, -1)[..., None]
        values = mul(step.beta, values)
        keys = sub(keys, over_lanes(arithmetic, made.decayed, values))
        decayed_bar = sub(state_bar, outer(arithmetic, step.keys, values))
    if step.left is not None:
        assert made.seen is not None
        seen = over_keys(arithmetic, step.left, state_bar)
        left = over_lanes(arithmetic, state_bar, made.seen)
        right = over_lanes(arithmetic, before, seen)
    state, decay, value_decay = _through_decay(
        arithmetic, step, before, made.key_decayed, decayed_bar
    )
    if step.right is not None:
        assert seen is not None
        state = arithmetic.add(state, outer(arithmetic, step.right, seen))
    bars = Steps(
        keys=keys,
        values=values,
        reads=step.reads,
        decay=decay,
        value_decay=value_decay,
        beta=beta,
        left=left,
        right=right,
    )
    return _Back(state=state, steps=bars)


def _through_decay(
    arithmetic: Arithmetic,
    step: Steps,
    before: Array,
    key_decayed: Array,
    decayed_bar: Array,
) -> tuple[Array, Array | None, Array | None]:
    """The cotangents of S_{t-1}, w and z from that of D."""
    state, decay, value_decay = decayed_bar, None, None
    if step.value_decay is not None:
        products = arithmetic.mul(state, key_decayed)
        value_decay = ascending_sum(arithmetic, products, -2)
        state = arithmetic.mul(state, step.value_decay[..., None, :])
    if step.decay is not None:
        decay = ascending_sum(arithmetic, arithmetic.mul(state, before), -1)
        if step.decay.shape[-1] == 1:
            decay = ascending_sum(arithmetic, decay, -1)[..., None]
        state = arithmetic.mul(step.decay[..., :, None], state)
    return state, decay, value_decay


def _through_read_before(
    arithmetic: Arithmetic, step: Steps, before: Array, obar: Array, back: _Back
) -> _Back:
    """What a read-out before the update adds to the cotangents."""
    assert step.bonus is not None
    add, mul = arithmetic.add, arithmetic.mul
    read = with_bonus(arithmetic, step, before)
    read_bar = outer(arithmetic, step.reads, obar)
    drive_bar = mul(step.bonus[..., :, None], read_bar)
    drive = outer(arithmetic, step.keys, step.values)
    steps = replace(
        back.steps,
        keys=add(back.steps.keys, over_lanes(arithmetic, drive_bar, step.values)),
        values=add(back.steps.values, over_keys(arithmetic, step.keys, drive_bar)),
        reads=over_lanes(arithmetic, read, obar),
        bonus=ascending_sum(arithmetic, mul(drive, read_bar), -1),
    )
    return _Back(state=add(back.state, read_bar), steps=steps)
