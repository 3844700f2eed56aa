"""What most recipes say, free of any op: steps, speeds, drives and first states.

A recipe aims at decays and drives of B x D chains; scans.py and heads.py turn them into
the tensors of an op.
"""

import math
from dataclasses import dataclass

import numpy as np

from scancheck.formats import FloatArray, Format
from scancheck.recipes.streams import Stream, stream

RESET_RATE = 1e4  # exp(-1e4) and 2**-1e4 are zero in every format; fp16 holds 1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A validated case, as recipes read it."""

    op: str
    form: str | None  # linear_scan: "a" or "g"
    batch: int  # B
    steps: int  # T, or L of selective_scan; of all tokens where one has several
    channels: int  # D, or the lanes of all heads: HV V, H V, H P
    states: int  # N or K; 1 for linear_scan
    groups: int  # what has keys of its own: B/C groups, key heads; 1 for linear_scan
    heads: int  # what has a gate of its own: value heads; else as groups
    keys: str  # layout of B and C: time, grouped, constant
    softplus: bool  # the op applies softplus to delta + delta_bias
    bias: bool  # delta_bias is given
    initial_state: bool  # the initial state is given
    chunk: int  # chunk size to aim at
    fmt: Format  # storage format
    key: str  # what every random stream of this case is keyed with
    substeps: int = 1  # steps of each token

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

    @property
    def width(self) -> int:
        """Channels of a head: V or P."""
        return self.channels // self.heads

    @property
    def keyed(self) -> tuple[int, int, int, int]:
        """Shape of the keys and readouts of ops with heads: [B, T, H, K]."""
        return self.batch, self.steps, self.groups, self.states


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """Decays and drives; the rate of a step is step x speed, its decay exp(-rate).

    linear_scan's form a takes 2**-rate instead (linear between integers), form g
    exactly -rate; selective_scan and ssd have a step size near step and A = -speed.
    Gates of head j are those of channel j, over all states where the op has a gate per
    key, else of the first. A negative speed makes a state grow.
    """

    step: FloatArray  # [B, T, D], positive
    speed: FloatArray  # [D, N]
    drive: FloatArray  # [B, T, D], what is added to the state
    state: FloatArray  # [B, D, N]
    steady_keys: bool = False  # keys (B of selective_scan) are the same at every token
    bias: FloatArray | None = None  # delta_bias [D] where softplus is applied
    keys: FloatArray | None = None  # [B, T, H, K], in place of drawn ones
    reads: FloatArray | None = None  # [B, T, H, K], in place of drawn ones
    beta: FloatArray | None = None  # [B, T, HV]: strength of what the delta rule writes
    input_gates: FloatArray | None = (
        None  # [B, T, H]: i of mlstm, in place of drawn ones
    )


Tensors = dict[str, FloatArray]


def draws(plan: Plan, name: str) -> Stream:
    """The random stream of one quantity: independent of what else is drawn."""
    return stream(plan.key, name)


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
