"""Strong gates where sums and differences of gates are formed: per chunk, at limits."""

import math

import numpy as np

from scancheck.recipes.chains import Chains, Plan, Tensors, draws
from scancheck.recipes.range_edges import NARROW
from scancheck.recipes.streams import bell, integers, signed, uniform

# -log of the least normal value, the inverse of the largest, and half the least
# subnormal value of fp32: where exp(g) goes subnormal, exp(-g) overflows, exp(g) is 0.
FP32_LIMITS = (87.3365, 88.7228, 103.9721)
FP64_LIMITS = (708.3964, 709.7827, 745.1332)
FP16_LIMITS = (9.7041, 11.0899, 17.3287)


def one_strong_gate_per_chunk(plan: Plan) -> Chains:
    """A gate of -60 at one place of each chunk, -1e-3 at all others.

    The place is the first, second, middle or last of a chunk, another in each channel.
    A cumulative sum that runs past the gate keeps few digits of the small gates after
    it; an exclusive sum taken for an inclusive one shifts the gate by a token.

    Source: numerics.md 3, family 6.
    """
    places = np.array([0, 1, plan.chunk // 2, plan.chunk - 1]) % plan.chunk
    shift = int(integers(draws(plan, "place"), 0, 3, ()))
    place = places[(np.arange(plan.channels) + shift) % 4]
    token = np.arange(plan.steps)[None, :, None]
    step = uniform(draws(plan, "step"), 2.0**-11, 2.0**-9, plan.sequence)
    step[np.broadcast_to(token % plan.chunk == place, plan.sequence)] = 60.0
    return Chains(
        step=step,
        speed=np.ones(plan.speeds),
        drive=bell(draws(plan, "drive"), plan.sequence),
        state=8.0 * bell(draws(plan, "state"), plan.state),
    )


def cumulative_gate_at_limit(plan: Plan) -> Chains:
    """The gates of a chunk sum to where exp turns subnormal, zero, or overflows.

    Even channels reach the limit by equal gates, odd ones by random ones; the last
    token of a chunk takes the sum to within an ulp of the limit or so, below or above.
    In form a the limits are those of the product, in powers of two.

    Source: numerics.md 3, family 7 (tt-metal#56550, executorch#21417).
    """
    limits = np.array(_limits(plan))
    chosen = limits[integers(draws(plan, "limit"), 0, len(limits) - 1, plan.sequence)]
    ulps = integers(draws(plan, "ulps"), -1, 1, plan.sequence)
    share = uniform(draws(plan, "share"), 0.5, 1.5, plan.sequence)
    share[:, :, ::2] = 1.0
    step = share / plan.chunk
    for start in range(0, plan.steps, plan.chunk):
        stop = min(start + plan.chunk, plan.steps)
        limit = chosen[:, start] * (1.0 + 2.0**-23 * ulps[:, start])
        step[:, start:stop] *= limit[:, None]
        before = step[:, start : stop - 1].sum(axis=1)
        step[:, stop - 1] = np.maximum(limit - before, limit / plan.chunk)
    return Chains(
        step=step,
        speed=np.ones(plan.speeds),
        drive=signed(draws(plan, "drive"), 1.0, 2.0, plan.sequence),
        state=signed(draws(plan, "state"), 1.0, 2.0, plan.state),
    )


def _limits(plan: Plan) -> tuple[float, ...]:
    """Sums of rates at which an exponential leaves some part of the range."""
    limits: tuple[float, ...] = FP32_LIMITS
    if plan.fmt.precision == 53:
        limits = FP64_LIMITS
    elif -plan.fmt.emin < NARROW:
        limits = FP16_LIMITS + FP32_LIMITS
    if plan.form == "a":
        return tuple(limit / math.log(2.0) for limit in limits)
    return limits


def most_negative_gate(plan: Plan) -> Tensors:
    """Resets by a gate of a sixteenth of the most negative value of the format.

    Such gates stand for minus infinity in masks; the sum of a few dozen overflows to
    it, and the difference of two such sums is NaN. Between resets decays are slow.

    Source: numerics.md 3, family 4.
    """
    gate = -uniform(draws(plan, "gate"), 1 / 64, 1 / 16, plan.sequence)
    resets = uniform(draws(plan, "reset"), 0.0, 1.0, plan.sequence) < 0.125
    gate[resets] = -min(plan.fmt.largest, 2.0**127) / 16.0
    return {
        "g": gate,
        "b": bell(draws(plan, "drive"), plan.sequence),
        "initial_state": 8.0 * bell(draws(plan, "state"), plan.state[:2]),
    }


def strong_gates(plan: Plan) -> Chains:
    """Memories below one token throughout: log gates of -1/2 to -5.

    Reverse cumulative sums of q dq - k dk, which some backward passes take for the
    gate's gradient, lose it among terms that are not its own.

    Source: numerics.md 2.9 and 3, family 32.
    """
    return Chains(
        step=uniform(draws(plan, "step"), 0.5, 1.5, plan.sequence),
        speed=uniform(draws(plan, "speed"), 1.0, 3.25, plan.speeds),
        drive=bell(draws(plan, "drive"), plan.sequence),
        state=8.0 * bell(draws(plan, "state"), plan.state),
    )
