"""Values at the edges of a format's range: subnormals, growth, deep dips."""

import math

import numpy as np

from scancheck.formats import FloatArray, IntArray
from scancheck.recipes.chains import Chains, Plan, Tensors, draws
from scancheck.recipes.elementary import logarithm
from scancheck.recipes.op_rules import lowered
from scancheck.recipes.streams import (
    bell,
    halving,
    integers,
    signed,
    signs,
    uniform,
)

NARROW = 32  # formats with fewer binades on either side of 1 than this: fp16


def subnormal_state(plan: Plan) -> Chains:
    """Drives and first states below the smallest normal value of the format.

    Half the channels halve the state at each step, the others forget slowly.
    """
    fraction_bits = plan.fmt.precision - 1
    smallest = math.log2(plan.fmt.smallest_normal) - fraction_bits
    speed = np.ones(plan.speeds)
    speed[::2] = 2.0**-6
    return Chains(
        step=np.ones(plan.sequence),
        speed=speed,
        drive=_subnormals(plan, "drive", plan.sequence, smallest),
        state=_subnormals(plan, "state", plan.state, smallest),
    )


def _subnormals(
    plan: Plan, name: str, shape: tuple[int, ...], smallest: float
) -> FloatArray:
    """Magnitudes of 1 to all fraction bits of the smallest subnormal."""
    bits = integers(draws(plan, f"{name} bits"), 0, plan.fmt.precision - 2, shape)
    fraction = signed(draws(plan, name), 1.0, 2.0, shape)
    return np.ldexp(fraction, bits + int(smallest))


def negative_decay(plan: Plan) -> Tensors:
    """Decays from -1 to -1/2, in odd channels of either sign: without a logarithm."""
    decay = -halving(uniform(draws(plan, "decay"), 0.0, 1.0, plan.sequence))
    decay[:, :, ::3] = -1.0
    decay[:, :, 1::2] *= signs(draws(plan, "sign"), plan.sequence)[:, :, 1::2]
    return {
        "a": decay,
        "b": bell(draws(plan, "drive"), plan.sequence),
        "initial_state": 8.0 * bell(draws(plan, "state"), plan.state[:2]),
    }


def growth(plan: Plan) -> Tensors:
    """Decays above 1, up to 1.1, whose product stays below 2**20.

    In fp16, whose largest value is below 2**16, the product stays below 4: gradients
    multiply two such sums. linear_scan grows at some tokens, elsewhere its decay is 1;
    other ops at all tokens: by a gate per head, or in the states, about half, whose A
    or gate is positive.
    """
    bound = math.log(2.0) * (2.0 if -plan.fmt.emin < NARROW else 20.0)
    if plan.op != "linear_scan":
        return lowered(plan, _growing_states(plan, bound))
    likely = min(1.0, bound / (0.05 * max(plan.steps, 1)))
    grows = uniform(draws(plan, "when"), 0.0, 1.0, plan.sequence) < likely
    rate = grows * uniform(draws(plan, "rate"), 2.0**-7, 0.1, plan.sequence)
    rate[rate.cumsum(axis=1) > bound] = 0.0
    return {
        str(plan.form): 1.0 + rate if plan.form == "a" else rate,
        "b": 0.125 * bell(draws(plan, "drive"), plan.sequence),
        "initial_state": bell(draws(plan, "state"), plan.state[:2]),
    }


def _growing_states(plan: Plan, bound: float) -> Chains:
    """Steps about 1 and A of either sign, so large that a product reaches `bound`.

    A step may lie a tenth above what is asked for, and is rounded.
    """
    largest = 0.9 * min(0.1, bound / max(plan.steps, 1))
    speed = signed(draws(plan, "A"), 0.5 * largest, largest, plan.speeds)
    speed[:, 0] = -np.abs(speed[:, 0])
    return Chains(
        step=uniform(draws(plan, "step"), 0.5, 1.0, plan.sequence),
        speed=speed,
        drive=0.125 * bell(draws(plan, "drive"), plan.sequence),
        state=bell(draws(plan, "state"), plan.state),
    )


def dip_and_regrow(plan: Plan) -> Tensors:
    """The prefix product falls to 2**-40 (fp16: 2**-8) and rises back, repeatedly."""
    deep = 8 if -plan.fmt.emin < NARROW else 40
    level = _levels(plan, deep)
    return _along(plan, level, level)


def dip_out_of_range(plan: Plan) -> Tensors:
    """The same to far below the least value of fp32 (fp64: of fp64).

    In even channels the state sinks with the product; in odd ones drives hold it above
    2**-100 (fp64: 2**-800), so that only products over a rise leave the range. fp16
    drives do not reach that low: there all channels sink.
    """
    deep, held = (1200, -800) if plan.fmt.precision == 53 else (170, -100)
    level = _levels(plan, deep)
    drive_level = level.copy()
    if -plan.fmt.emin >= NARROW:
        drive_level[:, :, 1::2] = np.maximum(level[:, :, 1::2], held)
    return _along(plan, level, drive_level)


def rise_and_fall(plan: Plan) -> Tensors:
    """The prefix product rises to 2**140 (fp64: 2**1100) and falls back, repeatedly.

    The first state and the drives are so small (2**-100, fp64: 2**-900, at the foot of
    a rise) that every state is in range, and a product over a rise is not: an
    algorithm that multiplies decays overflows though all it is asked for is moderate.
    fp16 does not hold drives that small, and rises to 2**12 only.

    Source: numerics.md 3, families 8 and 10.
    """
    if -plan.fmt.emin < NARROW:
        high, foot = 12, -8
    else:
        high, foot = (1100, -900) if plan.fmt.precision == 53 else (140, -100)
    level = -_levels(plan, high)
    made = _along(plan, level, level + foot)
    return made | {"initial_state": np.ldexp(made["initial_state"], foot)}


def isolated_growth(plan: Plan) -> Tensors:
    """A slow fall by 2**-30 (fp16: 2**-6), made good by one decay of 2**30.

    A single step multiplies the past, and its rounding errors, by 2**30; kernels that
    clamp log gates at 0, or the exponent of a difference, lose it.

    Source: numerics.md 3, family 8.
    """
    deep = 6 if -plan.fmt.emin < NARROW else 30
    period = max(plan.chunk // 2, 8)
    lead = integers(draws(plan, "lead"), 0, period - 1, (1, 1, plan.channels))
    token = np.arange(plan.steps)[None, :, None] + lead
    place = np.broadcast_to(token % period, plan.sequence)
    level = -(deep * place // (period - 1))
    made = _along(plan, level, level)
    if plan.form == "a":
        return made
    return {
        "g": logarithm(made["a"]),
        "b": made["b"],
        "initial_state": made["initial_state"],
    }


def _levels(plan: Plan, deep: int) -> IntArray:
    """log2 of the prefix product [B, T, D]: 0 down to -deep and back, repeated.

    The period of a channel is half a chunk to two chunks, or what steps of half the
    format's exponent range need.
    """
    largest_step = min(100, -plan.fmt.emin - 2)
    at_least = 2 * -(-deep // largest_step)
    chosen = integers(draws(plan, "period"), -1, 1, (1, 1, plan.channels))
    period = np.maximum(np.ldexp(float(plan.chunk), chosen), at_least)
    lead = integers(draws(plan, "lead"), 0, plan.chunk // 2, (1, 1, plan.channels))
    token = np.arange(1, plan.steps + 1)[None, :, None]
    phase = (np.maximum(token - lead, 0) / period) % 1.0
    depth = np.floor(deep * np.minimum(2.0 * phase, 2.0 * (1.0 - phase)))
    return np.broadcast_to(-depth.astype(np.int64), plan.sequence)


def _along(plan: Plan, level: IntArray, drive_level: IntArray) -> Tensors:
    """Slow decays and drives, scaled so that the prefix product follows `level`."""
    rise = np.diff(level, axis=1, prepend=0)
    slow = halving(uniform(draws(plan, "decay"), 0.0, 0.125, plan.sequence))
    return {
        "a": np.ldexp(slow, rise),
        "b": np.ldexp(bell(draws(plan, "drive"), plan.sequence), drive_level),
        "initial_state": 8.0 * bell(draws(plan, "state"), plan.state[:2]),
    }
