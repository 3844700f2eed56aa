"""What most recipes say, free of any op: steps, speeds, drives and first states.

A recipe aims at decays and drives of B x D chains. `linear_scan_tensors` and
`selective_scan_tensors` turn them into the tensors of an op.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scancheck.formats import FloatArray, Format
from scancheck.recipes.streams import (
    Stream,
    bell,
    halving,
    signed,
    stream,
    uniform,
)

RESET_RATE = 1e4  # exp(-1e4) and 2**-1e4 are zero in every format; fp16 holds 1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A validated case, as recipes read it."""

    op: str
    form: str | None  # linear_scan: "a" or "g"
    batch: int  # B
    steps: int  # T (linear_scan) or L (selective_scan)
    channels: int  # D
    states: int  # N; 1 for linear_scan
    groups: int  # B/C groups of selective_scan; 1 for linear_scan
    keys: str  # layout of B and C: time, grouped, constant
    softplus: bool  # the op applies softplus to delta + delta_bias
    bias: bool  # delta_bias is given
    initial_state: bool  # the initial state is given
    chunk: int  # chunk size to aim at
    fmt: Format  # storage format
    key: str  # what every random stream of this case is keyed with

    @property
    def sequence(self) -> tuple[int, int, int]:
        """Shape of drives and steps: [B, T, D]."""
        return self.batch, self.steps, self.channels

    @property
    def state(self) -> tuple[int, int, int]:
        """Shape of the first states: [B, D, N]."""
        return self.batch, self.channels, self.states

    @property
    def speeds(self) -> tuple[int, int]:
        """Shape of the speeds: [D, N]."""
        return self.channels, self.states


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """Decays and drives; the rate of a step is step x speed, its decay exp(-rate).

    linear_scan's form a takes 2**-rate instead (linear between integers), form g
    exactly -rate; selective_scan has delta near step and A = -speed. A negative speed
    makes a state grow.
    """

    step: FloatArray  # [B, T, D], positive
    speed: FloatArray  # [D, N]
    drive: FloatArray  # [B, T, D], what is added to the state
    state: FloatArray  # [B, D, N]
    steady_keys: bool = False  # selective_scan: B is the same at every token
    bias: FloatArray | None = None  # delta_bias [D] where softplus is applied


Tensors = dict[str, FloatArray]


def draws(plan: Plan, name: str) -> Stream:
    """The random stream of one quantity: independent of what else is drawn."""
    return stream(plan.key, name)


def from_chains(recipe: Callable[[Plan], Chains]) -> Callable[[Plan], Tensors]:
    """The recipe as a function from a plan to tensors of the plan's op."""

    def tensors(plan: Plan) -> Tensors:
        lower = (
            linear_scan_tensors if plan.op == "linear_scan" else selective_scan_tensors
        )
        return lower(plan, recipe(plan))

    return tensors


def linear_scan_tensors(plan: Plan, chains: Chains) -> Tensors:
    """a or g, b and initial_state."""
    rate = np.minimum(chains.step * chains.speed[:, 0], RESET_RATE)
    gate = {"a": halving(rate)} if plan.form == "a" else {"g": -rate}
    return gate | {"b": chains.drive, "initial_state": chains.state[:, :, 0]}


def selective_scan_tensors(plan: Plan, chains: Chains) -> Tensors:
    """All tensors of selective_scan; the caller drops those that are not wanted.

    Where the step is at least 1/4, u is drive / step, so that B u delta has the size
    of the drive; below, small steps mean small drives, as in a trained model.
    """
    bias = _bias(plan, chains)
    argument = inverse_softplus(chains.step) if plan.softplus else chains.step
    drive = chains.drive / np.maximum(chains.step, 0.25)
    return {
        "u": drive.transpose(0, 2, 1),
        "delta": (argument - bias).transpose(0, 2, 1),
        "A": -chains.speed,
        "B": keys(plan, "B", steady=chains.steady_keys),
        "C": keys(plan, "C", steady=False),
        "D": bell(draws(plan, "D"), (plan.channels,)),
        "z": uniform(
            draws(plan, "z"), -2.0, 4.0, (plan.batch, plan.channels, plan.steps)
        ),
        "delta_bias": bias,
        "initial_state": chains.state,
    }


def _bias(plan: Plan, chains: Chains) -> FloatArray:
    """delta_bias [D]; without softplus so small that delta stays positive.

    It has the significand of its own format, fp32, so that a kernel that casts it to
    the format of delta is off by more than it may be.
    """
    if not plan.bias:
        return np.zeros(plan.channels)
    if plan.softplus:
        if chains.bias is not None:
            return chains.bias
        return uniform(draws(plan, "bias"), -2.0, 2.0, (plan.channels,))
    smallest = chains.step.min(axis=(0, 1), initial=1.0)
    _, exponent = np.frexp(smallest)
    significand = uniform(draws(plan, "bias"), 1.0, 2.0, (plan.channels,))
    return np.asarray(np.ldexp(significand, exponent - 3), dtype=np.float64)


def keys_shape(plan: Plan) -> tuple[int, ...]:
    """The shape of B and C in the layout of the plan."""
    return {
        "time": (plan.batch, plan.states, plan.steps),
        "grouped": (plan.batch, plan.groups, plan.states, plan.steps),
        "constant": (plan.channels, plan.states),
    }[plan.keys]


def keys(plan: Plan, name: str, *, steady: bool) -> FloatArray:
    """B or C: magnitudes in [1/2, 3/2), random signs; steady: the same at all times."""
    shape = keys_shape(plan)
    if steady and plan.keys != "constant":
        one = signed(draws(plan, name), 0.5, 1.5, (*shape[:-1], 1))
        return np.broadcast_to(one, shape).copy()
    return signed(draws(plan, name), 0.5, 1.5, shape)


def inverse_softplus(step: FloatArray) -> FloatArray:
    """A value whose softplus lies within about a tenth of `step`, for step > 0.

    log(expm1(s)) = log s + s/2 + s^2/24 - ... with the logarithm taken as linear
    between powers of two, and s - exp(-s) - ... = s - 2/s^4 (both 1.87 near 2) from 2
    on. Recipes need the size of a step, and no last bit that a library decides.
    """
    mantissa, exponent = np.frexp(step)
    log2 = exponent + 2.0 * (mantissa - 1.0)
    near_zero = math.log(2.0) * log2 + step * (0.5 + step / 24.0)
    return np.where(step < 2.0, near_zero, step - 2.0 / np.maximum(step, 2.0) ** 4)
