"""Inputs for ops whose output is divided by a running sum."""

import numpy as np

from scancheck.formats import FloatArray, round_array
from scancheck.recipes.chains import Chains, Plan, draws
from scancheck.recipes.heads import first_key_sums
from scancheck.recipes.streams import bell, integers, signed, uniform

LEFT = (1.0, 2.0**-3, 2.0**-6, 2.0**-9)  # of a denominator, by token and head
ROUNDINGS = 8.0  # of a readout that leave most of it as it is


def cancelling_normaliser(plan: Plan) -> Chains:
    """Readouts of both signs, nearly at right angles to the sum of the keys.

    q = p + (s sum |z p| - z . p) z / (z . z) leaves the share s of the denominator's
    terms, and of the numerator as much as there was: s is 1 down to 2**-9, but stays
    above what the rounding of q into its format takes. A kernel that rounds z, or the
    products of z . q, into a short format has few digits of it left.

    Source: the denominator of Katharopoulos et al., "Transformers are RNNs" (2020),
    equation 12, under a feature map that is not positive.
    """
    drawn = uniform(draws(plan, "keys"), 0.5, 1.5, plan.keyed)
    keys = round_array(plan.fmt, drawn / np.sqrt(plan.states))
    sums = keys.cumsum(axis=1)
    if plan.initial_state:
        sums = sums + first_key_sums(plan)[:, None]
    probe = signed(draws(plan, "reads"), 0.5, 1.5, plan.keyed)
    chosen = integers(draws(plan, "left"), 0, len(LEFT) - 1, plan.keyed[:3])
    share = np.maximum(np.array(LEFT), ROUNDINGS * plan.fmt.unit_roundoff)[chosen]
    left = share[..., None] * _dot(sums, np.abs(probe))
    along = (left - _dot(sums, probe)) / _dot(sums, sums)
    return Chains(
        step=np.ones(plan.sequence),
        speed=np.zeros(plan.speeds),
        drive=bell(draws(plan, "drive"), plan.sequence),
        state=bell(draws(plan, "state"), plan.state),
        keys=keys,
        reads=probe + along * sums,
    )


def _dot(x: FloatArray, y: FloatArray) -> FloatArray:
    """Products summed over keys in a fixed order, [B, T, H, 1]."""
    return (x * y).cumsum(axis=-1)[..., -1:]


def large_input_gates(plan: Plan) -> Chains:
    """Input gates between -100 and 100 (fp64: 800), beside ordinary forget gates.

    e^i leaves the range of fp32 (fp64), and e^(i - m) does not. m never falls far below
    zero, where its own floor e^-m would overflow.

    Source: Beck et al., "xLSTM" (2024), appendix A: what the stabiliser is for.
    """
    most = 800.0 if plan.fmt.precision == 53 else 100.0
    shape = (plan.batch, plan.steps, plan.heads)
    gates = uniform(draws(plan, "gates"), -most, most, shape)
    return Chains(
        step=uniform(draws(plan, "step"), 0.5, 1.5, plan.sequence),
        speed=np.full(plan.speeds, 1.0 / max(plan.chunk, 4)),
        drive=bell(draws(plan, "drive"), plan.sequence),
        state=bell(draws(plan, "state"), plan.state),
        input_gates=np.maximum(gates, -most * (np.arange(plan.steps) > 0)[:, None]),
    )


def deep_forget_gates(plan: Plan) -> Chains:
    """Forget gates below -105 (fp64: -840) beside input gates that are lower still.

    The state is kept, for the maximum goes down with it. A kernel that takes the log of
    sigmoid(f), which is zero there, has minus infinity in its place, and of the state
    nothing is left. Every eighth input gate is high, so that m stays above -most.

    Source: log(sigmoid(f)) in mlstm_kernels 2.0.6 (field/h200).
    """
    most = 800.0 if plan.fmt.precision == 53 else 100.0
    place = np.arange(plan.steps) % 8
    deep = uniform(draws(plan, "deep"), 1.05 * most, 1.5 * most, plan.sequence)
    usual = uniform(draws(plan, "step"), 0.5, 1.5, plan.sequence) / max(plan.chunk, 4)
    shape = (plan.batch, plan.steps, plan.heads)
    low = uniform(draws(plan, "gates"), -most, -0.9 * most, shape)
    return Chains(
        step=np.where(place[:, None] == 4, deep, usual),
        speed=np.ones(plan.speeds),
        drive=bell(draws(plan, "drive"), plan.sequence),
        state=bell(draws(plan, "state"), plan.state),
        input_gates=np.where(place[:, None] == 0, 0.8 * most, low),
    )
