"""Decays at their extremes: one, near one, near zero, exactly zero."""

import math

import numpy as np

from scancheck.formats import FloatArray
from scancheck.recipes.chains import RESET_RATE, Chains, Plan, draws
from scancheck.recipes.elementary import exponential, logarithm
from scancheck.recipes.streams import (
    bell,
    integers,
    power_of_two,
    signed,
    uniform,
)


def unit_decay(plan: Plan) -> Chains:
    """A pure sum. Odd channels add positive values only, as counters do.

    Drives shrink as the sequence grows, so that sums, and gradients that multiply two
    of them, stay in fp16's range.
    """
    drive = _bell_drive(plan)
    count = uniform(draws(plan, "count"), 0.0, 1.0, plan.sequence)
    count = np.ldexp(count, -max(0, plan.steps.bit_length() - 8))
    drive[:, :, 1::2] = count[:, :, 1::2]
    return Chains(
        step=uniform(draws(plan, "step"), 0.5, 1.5, plan.sequence),
        speed=np.zeros(plan.speeds),
        drive=drive,
        state=8.0 * bell(draws(plan, "state"), plan.state),
    )


def decay_near_one(plan: Plan) -> Chains:
    """Decay 1 - 2**-k, with k per channel from 3 to what the format still tells from 1.

    A log gate, and A in fp32, can be closer to 1 than the format of a decay.
    """
    finest = plan.fmt.precision - 1 if plan.form == "a" else 24
    k = integers(draws(plan, "speed"), 2, min(finest, 24), plan.speeds)
    return Chains(
        step=np.ones(plan.sequence),
        speed=np.ldexp(1.0, -k),
        drive=bell(draws(plan, "drive"), plan.sequence),
        state=8.0 * bell(draws(plan, "state"), plan.state),
    )


def decay_near_zero(plan: Plan) -> Chains:
    """Decay so strong that exp nears underflow; drives with gaps show what is left."""
    if plan.form == "a":
        strongest = min(120.0, -plan.fmt.emin)
        weakest = min(20.0, strongest / 2)
    else:
        weakest, strongest = 20.0, 87.0
    drive = signed(draws(plan, "drive"), 1.0, 2.0, plan.sequence)
    drive *= integers(draws(plan, "gaps"), 0, 1, plan.sequence)
    return Chains(
        step=uniform(draws(plan, "step"), 1.0, 1.25, plan.sequence),
        speed=uniform(draws(plan, "speed"), weakest, strongest / 1.25, plan.speeds),
        drive=drive,
        state=signed(draws(plan, "state"), 1.0, 2.0, plan.state),
    )


def exact_reset(plan: Plan) -> Chains:
    """Decay exactly zero at random tokens, and on, before or after chunk edges.

    Between resets the decay is slow, so that a missed reset leaves the whole past.
    """
    step = uniform(draws(plan, "step"), 1 / 64, 1 / 16, plan.sequence)
    at_random = integers(draws(plan, "reset"), 0, 4 * plan.chunk, plan.sequence) == 0
    offset = integers(draws(plan, "edge"), -1, 1, (1, 1, plan.channels))
    past_edge = np.arange(plan.steps)[None, :, None] - offset
    at_edge = (past_edge >= plan.chunk) & (past_edge % plan.chunk == 0)
    half = integers(draws(plan, "half"), 0, 1, plan.sequence) == 0
    step[at_random | (at_edge & half)] = RESET_RATE
    return Chains(
        step=step,
        speed=uniform(draws(plan, "speed"), 1.0, 4.0, plan.speeds),
        drive=bell(draws(plan, "drive"), plan.sequence),
        state=8.0 * bell(draws(plan, "state"), plan.state),
    )


def mixed_time_scales(plan: Plan) -> Chains:
    """Nearly log-normal rates (sigma 2 to 3): long and short memory side by side."""
    sigma = uniform(draws(plan, "sigma"), 2.0, 3.0, (1, 1, plan.channels))
    per_token = sigma * bell(draws(plan, "step"), plan.sequence) / math.log(2.0)
    return Chains(
        step=power_of_two(per_token),
        speed=power_of_two(uniform(draws(plan, "speed"), -7.0, -3.0, plan.speeds)),
        drive=bell(draws(plan, "drive"), plan.sequence),
        state=8.0 * bell(draws(plan, "state"), plan.state),
    )


def _bell_drive(plan: Plan) -> FloatArray:
    """Nearly normal drives, whose sum over all tokens has a deviation of at most 64."""
    drive = bell(draws(plan, "drive"), plan.sequence)
    return np.ldexp(drive, -max(0, (plan.steps.bit_length() - 11) // 2))


def gaussian_slow(plan: Plan) -> Chains:
    """Independent, nearly normal data and a large first state.

    The memory length of each channel lies between an eighth of a chunk and four times
    the sequence, so that some carries decay within a chunk and others never.

    No decay is close to 1, save 1 itself, because roundings would not be independent:
    for a = 1 - u the product a S of every S in the format is rounded the same way, and
    a tree's products of decays (1 - x)(1 - y) are all rounded the same way when x y is
    below an ulp (correct trees reached rho = 4.5 at 1,025 tokens). With x, y at least
    sqrt(32 u) / 2, x y covers several ulps.
    Longer memory comes from fewer tokens that decay; in selective_scan, where a step
    of zero would take the drive as well, from A = 0.
    """
    lengths = np.array(
        [plan.chunk / 8, plan.chunk, 4 * plan.chunk, plan.steps, 4 * plan.steps]
    )
    chosen = integers(draws(plan, "speed"), 0, len(lengths) - 1, plan.speeds)
    speed = 1.0 / np.maximum(lengths, 2.0)[chosen]
    step = uniform(draws(plan, "step"), 0.5, 1.5, plan.sequence)
    least = math.sqrt(32 * plan.fmt.unit_roundoff)
    if plan.op == "linear_scan":
        share = np.minimum(speed[:, 0] / least, 1.0)
        step *= uniform(draws(plan, "decays"), 0.0, 1.0, plan.sequence) < share
        speed = np.maximum(speed, least)
    else:
        speed = np.where(speed < least, 0.0, speed)
    return Chains(
        step=step,
        speed=speed,
        drive=_bell_drive(plan),
        state=32.0 * bell(draws(plan, "state"), plan.state),
    )


def softplus_tails(plan: Plan) -> Chains:
    """Steps that softplus takes from about -20, 0 and on both sides of 20."""
    tails = np.array([2.0**-29, 0.6875, 19.5, 20.0, 20.5])
    chosen = integers(draws(plan, "step"), 0, len(tails) - 1, plan.sequence)
    jitter = uniform(draws(plan, "jitter"), 0.96875, 1.03125, plan.sequence)
    return Chains(
        step=tails[chosen] * jitter,
        speed=uniform(draws(plan, "speed"), 2.0**-6, 1.0, plan.speeds),
        drive=bell(draws(plan, "drive"), plan.sequence),
        state=8.0 * bell(draws(plan, "state"), plan.state),
    )


def every_memory_length(plan: Plan) -> Chains:
    """Memories of 0, 1/2, C/8, C, 4C, T and infinitely many tokens, side by side.

    A fault in a carry shows only where the memory reaches over it, and one in the
    local part best where it does not: each class of fault lives at one length. The
    memory of a decay a is a / (1 - a) tokens.

    Source: numerics.md 2.2, and the first paragraph of 3.
    """
    lengths = np.array([plan.chunk / 8, plan.chunk, 4 * plan.chunk, plan.steps])
    rates = np.array([RESET_RATE, 1.1, *(1.0 / np.maximum(lengths, 1.0)), 0.0])
    first = int(integers(draws(plan, "speed"), 0, len(rates) - 1, ()))
    chain = np.arange(plan.channels * plan.states).reshape(plan.speeds)
    return Chains(
        step=uniform(draws(plan, "step"), 0.75, 1.25, plan.sequence),
        speed=rates[(chain + first) % len(rates)],
        drive=_bell_drive(plan),
        state=8.0 * bell(draws(plan, "state"), plan.state),
    )


def large_step_bias(plan: Plan) -> Chains:
    """delta_bias of -20, 0 and 20 per channel, and A from -16 to -1.

    softplus is exp of its argument on one side and the argument itself on the other;
    d A reaches -330, and its rounding before exp is as large as the decay. A token of
    padding with delta = 0 is no identity under such a bias.

    Source: numerics.md 3, families 19 and 34 (state-spaces/mamba#368).
    """
    bias = np.array([-20.0, 0.0, 20.0])
    first = int(integers(draws(plan, "first"), 0, 2, ()))
    kind = (np.arange(plan.channels) + first) % 3
    argument = bias[kind] + bell(draws(plan, "argument"), plan.sequence)
    step = logarithm(1.0 + exponential(np.minimum(argument, 10.0)))
    return Chains(
        step=np.where(argument < 10.0, step, argument),
        speed=uniform(draws(plan, "A"), 1.0, 16.0, plan.speeds),
        drive=bell(draws(plan, "drive"), plan.sequence),
        state=8.0 * bell(draws(plan, "state"), plan.state),
        bias=bias[kind] * uniform(draws(plan, "bias"), 0.9375, 1.0, (plan.channels,)),
    )
