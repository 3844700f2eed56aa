"""Drives and first states that are out of the ordinary, under ordinary decays."""

import math

import numpy as np

from scancheck.recipes.chains import Chains, Plan, Tensors, draws
from scancheck.recipes.range_edges import NARROW
from scancheck.recipes.streams import (
    bell,
    halving,
    integers,
    power_of_two,
    signed,
    signs,
    uniform,
)


def drives_of_many_scales(plan: Plan) -> Chains:
    """Log-normal drives (sigma 6), in odd channels 2**60 and 2**-60 in turn.

    What is added after a large drive is swamped by it, or by its rounding: the order
    of additions decides what is kept. In fp16 the scales are 2**3 and 2**-12.

    Source: numerics.md 3, family 14.
    """
    exponent = 6.0 / math.log(2.0) * bell(draws(plan, "scale"), plan.sequence)
    small, large = (-12.0, 3.0) if -plan.fmt.emin < NARROW else (-60.0, 60.0)
    exponent = np.clip(exponent, small, large)
    odd = np.where(signs(draws(plan, "turn"), plan.sequence) > 0.0, large, small)
    exponent[:, :, 1::2] = odd[:, :, 1::2]
    lengths = np.array([plan.chunk / 8, plan.chunk, 4 * plan.chunk])
    chosen = integers(draws(plan, "speed"), 0, 2, plan.speeds)
    return Chains(
        step=uniform(draws(plan, "step"), 0.5, 1.5, plan.sequence),
        speed=1.0 / np.maximum(lengths, 2.0)[chosen],
        drive=power_of_two(exponent)
        * signed(draws(plan, "drive"), 0.5, 1.0, plan.sequence),
        state=bell(draws(plan, "state"), plan.state),
    )


def constant_drive_and_decay(plan: Plan) -> Chains:
    """Drive 1 and decay 1 - 2**-k throughout, k from 2 on, in one channel decay 1.

    Each step is rounded as the one before: errors add up instead of averaging out, and
    a state in a short format stops short of its limit 2**k.

    Source: numerics.md 3, family 17, and 2.8 on stagnation.
    """
    k = integers(draws(plan, "speed"), 2, min(plan.fmt.precision - 1, 16), plan.speeds)
    speed = np.ldexp(1.0, -k)
    speed[0] = 0.0
    # The sum of all drives must leave room for products of two states in fp16.
    drive = 2.0 ** -max(0, plan.steps.bit_length() - 7)
    return Chains(
        step=np.ones(plan.sequence),
        speed=speed,
        drive=np.full(plan.sequence, drive),
        state=np.zeros(plan.state),
        steady_keys=True,
    )


def large_first_state(plan: Plan) -> Chains:
    """A first state of 1e4, zero, or ordinary, by channel, over small drives.

    Kernels are mostly tried from zero: an initial state that is forgotten, applied
    twice, or not decayed over the first chunk shows at full size, and one that is
    given as zeros must change nothing. In fp16 it is 100.

    Source: numerics.md 3, family 33.
    """
    size = 100.0 if -plan.fmt.emin < NARROW else 1e4
    sizes = np.array([size, 0.0, 1.0])
    kind = np.arange(plan.channels) % 3
    memory = np.array([plan.chunk, 4 * plan.chunk, 2 * plan.steps + 2])
    chosen = integers(draws(plan, "speed"), 0, len(memory) - 1, plan.speeds)
    return Chains(
        step=uniform(draws(plan, "step"), 0.5, 1.5, plan.sequence),
        speed=1.0 / np.maximum(memory, 4.0)[chosen],
        drive=0.125 * bell(draws(plan, "drive"), plan.sequence),
        state=sizes[kind][None, :, None]
        * signed(draws(plan, "state"), 0.5, 1.0, plan.state),
    )


def signed_zeros(plan: Plan) -> Tensors:
    """Zeros of both signs among decays, drives and first states, values between.

    log(-0) and 0 / 0 in forms that take logarithms or divide, and a copysign or a
    comparison that treats -0 as negative.

    Source: numerics.md 3, family 12.
    """
    decay = halving(uniform(draws(plan, "decay"), 0.0, 0.25, plan.sequence))
    drive = bell(draws(plan, "drive"), plan.sequence)
    state = bell(draws(plan, "state"), plan.state[:2])
    for name, values, share in (
        ("a", decay, 0.0625),
        ("b", drive, 0.5),
        ("initial_state", state, 0.5),
    ):
        zero = uniform(draws(plan, f"{name} zero"), 0.0, 1.0, values.shape) < share
        sign = signs(draws(plan, f"{name} sign"), values.shape)
        values[zero] = np.copysign(0.0, sign)[zero]
    return {"a": decay, "b": drive, "initial_state": state}


def noncommuting_steps(plan: Plan) -> Tensors:
    """Steps x -> x + 1 and x -> x / 2 in turn: swapped, they differ by a factor of 2.

    Each channel starts with one or the other, with a sign of its own. An operator
    called with its operands swapped, or a reversed scan, is wrong at full size.

    Source: numerics.md 3, family 23 (triton-lang/triton#2359, #4362).
    """
    first = integers(draws(plan, "first"), 0, 1, (plan.batch, 1, plan.channels))
    halves = ((np.arange(plan.steps)[None, :, None] + first) % 2).astype(np.float64)
    sign = signs(draws(plan, "sign"), (plan.batch, 1, plan.channels))
    gate = halving(halves) if plan.form == "a" else -math.log(2.0) * halves
    return {
        str(plan.form): gate,
        "b": sign * (1.0 - halves),
        "initial_state": 4.0 * signs(draws(plan, "state"), plan.state[:2]),
    }
