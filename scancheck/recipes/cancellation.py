"""Large drives that cancel: the state stays small, what went into it does not."""

import numpy as np

from scancheck.formats import FloatArray, round_array
from scancheck.recipes.chains import Chains, Plan, Tensors, draws
from scancheck.recipes.elementary import exponential_of_small
from scancheck.recipes.streams import bell, halving, integers, signed, uniform


def telescoping_cancellation(plan: Plan) -> Chains:
    """Drives X and -P X with P the decay between them, across every chunk edge.

    After each pair the state is what rounding and a small noise leave, while M has
    kept X. linear_scan: every second channel has fast random gates and pairs one to
    three tokens apart. All other channels decay slowly, with pairs up to a chunk
    apart; there P is taken as 1 in selective_scan, whose decay goes through softplus.
    """
    k = integers(draws(plan, "speed"), 8, 16, plan.speeds)
    speed = np.ldexp(1.0, -k)
    step = np.ones(plan.sequence)
    longest = np.full(plan.channels, plan.chunk)
    if plan.op == "linear_scan":
        fast = slice(1, None, 2)
        speed[fast] = 1.0
        step[:, :, fast] = uniform(draws(plan, "gate"), 0.05, 0.6, plan.sequence)[
            :, :, fast
        ]
        longest[fast] = 3
    kept = _decay(plan, step * speed[:, 0])
    drive = 2.0**-8 * bell(draws(plan, "noise"), plan.sequence)
    size = signed(draws(plan, "size"), 32.0, 64.0, plan.sequence)
    part = uniform(draws(plan, "span"), 0.0, 1.0, (2, plan.channels))
    for channel in range(plan.channels):
        span = 1 + int(part[0, channel] * (min(longest[channel], plan.steps - 1) - 1))
        lead = int(part[1, channel] * span)
        for first in _firsts(plan, span, lead):
            pair = size[:, first, channel]
            between = kept[:, first + 1 : first + span + 1, channel].prod(axis=1)
            drive[:, first, channel] += pair
            drive[:, first + span, channel] -= between * pair
    return Chains(
        step=step,
        speed=speed,
        drive=drive,
        state=2.0**-8 * bell(draws(plan, "state"), plan.state),
        steady_keys=True,
    )


def _firsts(plan: Plan, span: int, lead: int) -> list[int]:
    """Where pairs begin: `lead` + 1 tokens before each edge, or at the start."""
    before_edges = range(plan.chunk - 1 - lead, plan.steps - span, plan.chunk)
    return list(before_edges) or ([0] if plan.steps > 1 else [])


def _decay(plan: Plan, rate: FloatArray) -> FloatArray:
    """The decay that linear_scan's stored gate stands for; ones for selective_scan."""
    if plan.form == "a":
        return round_array(plan.fmt, halving(rate))
    if plan.form == "g":
        return exponential_of_small(round_array(plan.fmt, -rate))
    return np.ones_like(rate)


def prescribed_condition(plan: Plan) -> Tensors:
    """Drives solved for, so that a state is 2**-k of M, k from 4 to what is storable.

    So it is before, on and after each chunk edge and at the last token, with k in
    {4, 8, 12, ...} per channel: an error that follows M, as it may, is off by 2**k
    ulps of the state, and the budget must follow. Other drives are random, decays lie
    between 0.55 and 0.95.

    Source: numerics.md 3, family 16, after XBLAS (Li, Demmel et al., 2002).
    """
    rate = uniform(draws(plan, "rate"), 0.0625, 0.5, plan.sequence)
    kept = _decay(plan, rate)
    gate = round_array(plan.fmt, halving(rate)) if plan.form == "a" else -rate
    drive = bell(draws(plan, "drive"), plan.sequence)
    state = 8.0 * bell(draws(plan, "state"), plan.state[:2])
    finest = plan.fmt.precision + 4
    share = np.ldexp(1.0, -4 * (1 + np.arange(plan.channels) % (finest // 4)))
    now = state if plan.initial_state else np.zeros_like(state)
    size = np.abs(now)
    for token in range(plan.steps):
        before = kept[:, token] * now
        size = kept[:, token] * size
        if token == plan.steps - 1 or (token + 1) % plan.chunk <= 2:
            # M_t = size + |b|, |S_t| = share M_t and S_t of the sign of a S_{t-1}.
            wanted = share * (size + np.abs(before)) / (1.0 + share)
            drive[:, token] = np.copysign(wanted, before) - before
        drive[:, token] = round_array(plan.fmt, drive[:, token])
        now = before + drive[:, token]
        size = size + np.abs(drive[:, token])
    return {str(plan.form): gate, "b": drive, "initial_state": state}
