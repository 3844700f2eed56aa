"""Chains as the tensors of the ops with heads: attention, SSD, delta rule, RWKV.

A head's V channels share its keys and gates; definitions are those of scancheck.ops.
Gates of head j are those of channel j: recipes give neighbouring channels different
hazards, and the first channels of all heads would mostly have one kind.
Keys are about 1 / sqrt(K) in size, so that |k| |v| is about the drive, and readouts
about 1: an output scaled by K**-0.5 has the size of the state.
"""

import numpy as np

from scancheck.formats import FloatArray
from scancheck.recipes.chains import (
    RESET_RATE,
    Chains,
    Plan,
    Tensors,
    draws,
    inverse_softplus,
)
from scancheck.recipes.scans import step_bias
from scancheck.recipes.streams import bell, signed, uniform

LEAST_RATE = 2.0**-20  # of a gate that is a logsigmoid
VALUE_GATE_SHARE = 1 / 8  # gv's part of a rate, beside gk


def linear_attention_tensors(plan: Plan, chains: Chains) -> Tensors:
    """q, k, v and the first state: all of an op whose decays are fixed, or none."""
    return {
        "q": _reads(plan, chains),
        "k": additive_keys(plan, chains),
        "v": _values(plan, chains.drive),
        "initial_state": _state(plan, chains),
    }


def normalized_linear_attention_tensors(plan: Plan, chains: Chains) -> Tensors:
    """q and k as a feature map gives them, positive, and the first sum of keys.

    Where a recipe gives keys or readouts they keep their signs.
    """
    made = linear_attention_tensors(plan, chains)
    shared = plan.heads // plan.groups
    return made | {
        "q": np.abs(made["q"]) if chains.reads is None else made["q"],
        "k": np.abs(made["k"]) if chains.keys is None else made["k"],
        "initial_key_sum": np.repeat(first_key_sums(plan), shared, axis=1),
    }


def first_key_sums(plan: Plan) -> FloatArray:
    """Sums of one to three keys, [B, H, K], of each key head."""
    shape = (plan.batch, plan.groups, plan.states)
    drawn = uniform(draws(plan, "key sum"), 1.0, 2.0, shape)
    sums: FloatArray = drawn / np.sqrt(plan.states)
    return sums


def simple_gla_tensors(plan: Plan, chains: Chains) -> Tensors:
    """The same with a gate per head."""
    return linear_attention_tensors(plan, chains) | {"g": -head_rates(plan, chains)}


def gla_tensors(plan: Plan, chains: Chains) -> Tensors:
    """Gates per key, and weaker ones per value channel from that channel's rate."""
    of_values = np.minimum(chains.step * chains.speed[:, 0], RESET_RATE)
    return linear_attention_tensors(plan, chains) | {
        "gk": -key_rates(plan, chains),
        "gv": -VALUE_GATE_SHARE * _values(plan, of_values),
    }


def rwkv6_tensors(plan: Plan, chains: Chains) -> Tensors:
    """Gates per key, and a bonus u of unit order for the current token."""
    made = linear_attention_tensors(plan, chains)
    return {
        "r": made.pop("q"),
        **made,
        "w": -key_rates(plan, chains),
        "u": bell(draws(plan, "u"), (plan.heads, plan.states)),
    }


def ssd_tensors(plan: Plan, chains: Chains) -> Tensors:
    """Step sizes and A per head, made as those of selective_scan per channel."""
    step = chains.step[:, :, : plan.heads]
    bias = step_bias(plan, chains)[: plan.heads]
    argument = inverse_softplus(step) if plan.softplus else step
    values = _values(plan, chains.drive)
    return {
        "x": values / np.maximum(step, 0.25)[..., None],
        "dt": argument - bias,
        "A": -chains.speed[: plan.heads, 0],
        "B": additive_keys(plan, chains),
        "C": _reads(plan, chains),
        "D": bell(draws(plan, "D"), (plan.heads,)),
        "z": uniform(draws(plan, "z"), -2.0, 4.0, values.shape),
        "dt_bias": bias,
        "initial_states": chains.state.reshape(
            plan.batch, plan.heads, plan.width, plan.states
        ),
    }


def delta_rule_tensors(plan: Plan, chains: Chains) -> Tensors:
    """Keys of unit length, and beta within (0, 1): every step contracts."""
    return linear_attention_tensors(plan, chains) | {
        "k": erasing_keys(plan, chains),
        "beta": _beta(plan, chains),
    }


def gated_delta_rule_tensors(plan: Plan, chains: Chains) -> Tensors:
    """The same with a gate per head."""
    return delta_rule_tensors(plan, chains) | {"g": -head_rates(plan, chains)}


def gated_delta_product_tensors(plan: Plan, chains: Chains) -> Tensors:
    """Several steps a token: it reads with its last one, and decays by all at once."""
    made = gated_delta_rule_tensors(plan, chains)

    def per_token(x: FloatArray) -> FloatArray:
        """[B, T M, ...] -> [B, T, M, ...]."""
        tokens = plan.steps // plan.substeps
        return x.reshape(plan.batch, tokens, plan.substeps, *x.shape[2:])

    rates = per_token(made["g"]).cumsum(axis=2)[:, :, -1]
    return {
        "q": per_token(made["q"])[:, :, -1],
        **{name: per_token(made[name]) for name in ("k", "v", "beta")},
        "g": np.maximum(rates, -RESET_RATE),
        "initial_state": made["initial_state"],
    }


def kda_tensors(plan: Plan, chains: Chains) -> Tensors:
    """The same with a gate per key."""
    return delta_rule_tensors(plan, chains) | {"g": -key_rates(plan, chains)}


def rwkv7_tensors(plan: Plan, chains: Chains) -> Tensors:
    """a = -kk and b = eta kk with unit kk and eta in (0, 1): every step contracts.

    So RWKV-7 makes them from its removal key and in-context learning rate (Peng et al.,
    "RWKV-7 Goose", 2025, section 4.1). The key that is written is another one; where
    the recipe gives keys it is eta kk, which is the delta rule with beta = eta.
    """
    removal = erasing_keys(plan, chains)
    eta = _beta(plan, chains)[..., None]
    written = additive_keys(plan, chains) if chains.keys is None else eta * removal
    made = linear_attention_tensors(plan, chains)
    return {
        "r": made["q"],
        "w": -key_rates(plan, chains),
        "k": written,
        "v": made["v"],
        "a": -removal,
        "b": eta * removal,
        "initial_state": made["initial_state"],
    }


def mlstm_tensors(plan: Plan, chains: Chains) -> Tensors:
    """f by the rates, and i around -4, 0 and 4 by head, before their functions.

    So either side of max(|n . r|, e^-m) is met, and either branch of m. A rate of zero
    has no f; one of 2**-20 stands for it.
    """
    made = linear_attention_tensors(plan, chains)
    rates = np.maximum(head_rates(plan, chains), LEAST_RATE)
    around = 4.0 * (np.arange(plan.heads) % 3 - 1)
    drawn = 2.0 * bell(draws(plan, "i"), rates.shape) + around
    of_state = (plan.batch, plan.heads, plan.states)
    normaliser = bell(draws(plan, "normaliser"), of_state)
    return {
        **{name: made[name] for name in ("q", "k", "v", "initial_state")},
        "i": drawn if chains.input_gates is None else chains.input_gates,
        "f": -inverse_softplus(rates),
        "initial_normalizer": normaliser / np.sqrt(plan.states),
        "initial_max": bell(draws(plan, "max"), of_state[:2]),
    }


def head_rates(plan: Plan, chains: Chains) -> FloatArray:
    """Rates of a gate per head, [B, T, HV]."""
    rate = chains.step[:, :, : plan.heads] * chains.speed[: plan.heads, 0]
    return np.minimum(rate, RESET_RATE)


def key_rates(plan: Plan, chains: Chains) -> FloatArray:
    """Rates of a gate per key, [B, T, HV, K]."""
    rate = chains.step[:, :, : plan.heads, None] * chains.speed[: plan.heads]
    return np.minimum(rate, RESET_RATE)


def additive_keys(plan: Plan, chains: Chains) -> FloatArray:
    """Keys [B, T, H, K] of magnitude 1/2 to 3/2 over sqrt(K), signs at random."""
    if chains.keys is not None:
        return chains.keys
    batch, steps, groups, states = plan.keyed
    tokens = 1 if chains.steady_keys else steps
    drawn = signed(draws(plan, "k"), 0.5, 1.5, (batch, tokens, groups, states))
    return np.broadcast_to(drawn / np.sqrt(states), plan.keyed).copy()


def erasing_keys(plan: Plan, chains: Chains) -> FloatArray:
    """Keys [B, T, H, K] of length 1 in directions at random."""
    if chains.keys is not None:
        return chains.keys
    batch, steps, groups, states = plan.keyed
    tokens = 1 if chains.steady_keys else steps
    drawn = bell(draws(plan, "kk"), (batch, tokens, groups, states))
    return np.broadcast_to(unit(drawn), plan.keyed).copy()


def unit(keys: FloatArray) -> FloatArray:
    """The keys divided by their length, summed in a fixed order; zeros stay zero."""
    length = np.sqrt((keys * keys).cumsum(axis=-1)[..., -1:])
    divided: FloatArray = keys / np.where(length == 0.0, 1.0, length)
    return divided


def _reads(plan: Plan, chains: Chains) -> FloatArray:
    """Readouts [B, T, H, K] of magnitude 1/2 to 3/2, signs at random."""
    if chains.reads is not None:
        return chains.reads
    return signed(draws(plan, "q"), 0.5, 1.5, plan.keyed)


def _beta(plan: Plan, chains: Chains) -> FloatArray:
    """beta [B, T, HV]."""
    if chains.beta is not None:
        return chains.beta
    shape = (plan.batch, plan.steps, plan.heads)
    return uniform(draws(plan, "beta"), 1 / 16, 15 / 16, shape)


def _values(plan: Plan, x: FloatArray) -> FloatArray:
    """[B, T, D] -> [B, T, HV, V]."""
    return x.reshape(plan.batch, plan.steps, plan.heads, plan.width)


def _state(plan: Plan, chains: Chains) -> FloatArray:
    """[B, D, N] -> [B, HV, K, V]."""
    shape = (plan.batch, plan.heads, plan.width, plan.states)
    return chains.state.reshape(shape).transpose(0, 1, 3, 2)
