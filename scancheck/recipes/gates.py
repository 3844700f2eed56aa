"""Strong gates where sums and differences of gates are formed: per chunk, at limits."""

import numpy as np

from scancheck.formats import round_array
from scancheck.recipes.chains import Chains, Plan, Tensors, draws
from scancheck.recipes.elementary import exponential
from scancheck.recipes.op_rules import lowered
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


def cumulative_gate_at_limit(plan: Plan) -> Tensors:
    """The gates of a chunk sum to where exp turns subnormal, zero, or overflows.

    Even channels reach the limit by equal gates, odd ones by random ones; the last
    token of a chunk takes the sum to an ulp of fp32 below the limit, above it, or onto
    it, as closely as the format writes a gate. Steps that go through softplus come
    within a tenth.

    Source: numerics.md 3, family 7 (tt-metal#56550, executorch#21417).
    """
    limits = np.array(_limits(plan))
    share = uniform(draws(plan, "share"), 0.5, 1.5, plan.sequence)
    share[:, :, ::2] = 1.0
    rate = np.zeros(plan.sequence)
    for start in range(0, plan.steps, plan.chunk):
        stop = min(start + plan.chunk, plan.steps)
        shape = (plan.batch, 1, plan.channels)
        nth = integers(draws(plan, f"limit {start}"), 0, len(limits) - 1, shape)
        ulps = integers(draws(plan, f"ulps {start}"), -1, 1, shape)
        limit = limits[nth] * (1.0 + 2.0**-23 * ulps)
        part = share[:, start : stop - 1]
        mean = part.mean(axis=1, keepdims=True) if part.shape[1] else 1.0
        others = round_array(plan.fmt, limit * part / (mean * (stop - start)))
        rate[:, start : stop - 1] = others
        rate[:, stop - 1 : stop] = limit - others.sum(axis=1, keepdims=True)
    drive = signed(draws(plan, "drive"), 1.0, 2.0, plan.sequence)
    state = signed(draws(plan, "state"), 1.0, 2.0, plan.state)
    if plan.op != "linear_scan":
        speed = np.ones(plan.speeds)
        chains = Chains(step=rate, speed=speed, drive=drive, state=state)
        return lowered(plan, chains)
    gate = {"g": -rate} if plan.form == "g" else {"a": exponential(-rate)}
    return gate | {"b": drive, "initial_state": state[:, :, 0]}


def _limits(plan: Plan) -> tuple[float, ...]:
    """Sums of rates at which an exponential leaves some part of the range."""
    if plan.fmt.precision == 53:
        return FP64_LIMITS
    if -plan.fmt.emin < NARROW:
        return FP16_LIMITS + FP32_LIMITS
    return FP32_LIMITS


def most_negative_gate(plan: Plan) -> Tensors:
    """Resets by a gate of an eighth of the most negative value of the format.

    Such gates stand for minus infinity in masks; the sum of nine overflows to it, and
    the difference of two such sums is NaN. Between resets decays are slow.

    Source: numerics.md 3, family 4.
    """
    gate = -uniform(draws(plan, "gate"), 1 / 64, 1 / 16, plan.sequence)
    resets = uniform(draws(plan, "reset"), 0.0, 1.0, plan.sequence) < 0.125
    gate[resets] = -min(plan.fmt.largest, 2.0**127) / 8.0
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
