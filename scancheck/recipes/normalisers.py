"""Inputs for ops whose output is divided by a running sum: little left of that sum."""

import numpy as np

from scancheck.formats import FloatArray, round_array
from scancheck.recipes.chains import Chains, Plan, draws
from scancheck.recipes.heads import first_key_sums
from scancheck.recipes.streams import bell, integers, signed, uniform

LEFT = (1.0, 2.0**-3, 2.0**-6, 2.0**-9)  # of a denominator, by token and head


def cancelling_normaliser(plan: Plan) -> Chains:
    """Readouts of both signs, nearly at right angles to the sum of the keys.

    q = p - (1 - s) z (z . p) / (z . z) leaves s (z . p) of the denominator z . q, and
    keeps the numerator as large as it is: s is 1 down to 2**-9, as far as the rounding
    of q into its format lets it. A kernel that rounds z, or the products of z . q, into
    a short format has no digit of it left.

    Source: the denominator of Katharopoulos et al., "Transformers are RNNs" (2020),
    equation 12, under a feature map that is not positive.
    """
    drawn = uniform(draws(plan, "keys"), 0.5, 1.5, plan.keyed)
    keys = round_array(plan.fmt, drawn / np.sqrt(plan.states))
    sums = keys.cumsum(axis=1)
    if plan.initial_state:
        sums = sums + first_key_sums(plan)[:, None]
    probe = signed(draws(plan, "reads"), 0.5, 1.5, plan.keyed)
    along = _dot(sums, probe) / _dot(sums, sums)
    left = np.array(LEFT)[integers(draws(plan, "left"), 0, 3, plan.keyed[:3])]
    return Chains(
        step=np.ones(plan.sequence),
        speed=np.zeros(plan.speeds),
        drive=bell(draws(plan, "drive"), plan.sequence),
        state=bell(draws(plan, "state"), plan.state),
        keys=keys,
        reads=probe - (1.0 - left[..., None]) * along * sums,
    )


def _dot(x: FloatArray, y: FloatArray) -> FloatArray:
    """Products summed over keys in a fixed order, [B, T, H, 1]."""
    return (x * y).cumsum(axis=-1)[..., -1:]
