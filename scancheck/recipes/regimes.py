"""Everyday gates that a format is chosen for: slow, Mamba's defaults, strong.

They carry no hazard and are no part of a verdict's cases; the precision report answers
for each of them which format and chunk size to use.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scancheck.recipes.chains import Chains, Plan, draws
from scancheck.recipes.op_rules import from_chains
from scancheck.recipes.recipe import Recipe
from scancheck.recipes.streams import bell, power_of_two, uniform
from scancheck.recipes.supports import FORM_G, SELECTIVE

SLOW_DECAY = 0.9999
STRONG_LOG_DECAY = -5.0
# Mamba's initialisation (Gu and Dao 2023, section 3.6; S4D-Real): A = -1 .. -N, and a
# time step that is log-uniform in 1e-3 .. 1e-1 for every channel.
MAMBA_STATES = 16
MAMBA_STEPS = (1e-3, 1e-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """A kind of gate with the words that a reader knows it by."""

    title: str
    recipe: Recipe


def _steady(plan: Plan, rate: float) -> Chains:
    """One rate for all channels, a tenth up or down from token to token."""
    return Chains(
        step=uniform(draws(plan, "step"), 0.9, 1.1, plan.sequence),
        speed=np.full(plan.speeds, rate),
        drive=bell(draws(plan, "drive"), plan.sequence),
        state=bell(draws(plan, "state"), plan.state),
    )


def regime_slow_gate(plan: Plan) -> Chains:
    """Decays about 0.9999: a memory of ten thousand tokens."""
    return _steady(plan, -math.log(SLOW_DECAY))


def regime_strong_gate(plan: Plan) -> Chains:
    """Log decays about -5: the state forgets within a token or two."""
    return _steady(plan, -STRONG_LOG_DECAY)


def regime_mamba_defaults(plan: Plan) -> Chains:
    """Mamba's A and time steps as initialised, steps depending on the token.

    linear_scan has one chain for each pair of channel and state; its channels take
    every fifth value of A, so that a few of them already span it.
    """
    low, high = (math.log2(step) for step in MAMBA_STEPS)
    width = power_of_two(uniform(draws(plan, "dt"), low, high, (1, 1, plan.channels)))
    rates = np.arange(1.0, plan.states + 1.0)
    speed = np.broadcast_to(rates, plan.speeds)
    if plan.op == "linear_scan":
        speed = 1.0 + 5 * np.arange(plan.channels)[:, None] % MAMBA_STATES
    return Chains(
        step=width * uniform(draws(plan, "step"), 0.5, 1.5, plan.sequence),
        speed=speed.astype(np.float64),
        drive=bell(draws(plan, "drive"), plan.sequence),
        state=bell(draws(plan, "state"), plan.state),
    )


def _regime(title: str, recipe: Callable[[Plan], Chains]) -> Regime:
    return Regime(
        title=title,
        recipe=Recipe(
            name=recipe.__name__,
            hazard="None: an everyday gate.",
            tensors=from_chains(recipe),
            group="realistic",
            supports=(FORM_G, SELECTIVE),
        ),
    )


REGIMES: dict[str, Regime] = {
    regime.recipe.name: regime
    for regime in (
        _regime(f"slow gate ({SLOW_DECAY})", regime_slow_gate),
        _regime("Mamba's defaults", regime_mamba_defaults),
        _regime(f"strong gate (log {STRONG_LOG_DECAY:g})", regime_strong_gate),
    )
}
