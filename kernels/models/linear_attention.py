"""Linear attention with no decay or one per head, as steps.

    S_t = w_t S_{t-1} + k_t v_t^T        o_t = K**-0.5 S_t^T q_t

linear_attention: w = 1 (Katharopoulos et al., "Transformers are RNNs", 2020, without
the normaliser). simple_gla: w = exp(g_t), as in ssd. retention: w = 1 - 2**(-5 - j) for
value head j (Sun et al., "Retentive Network", 2023). lightning_attention:
w = exp(-(8 / HV) j), the slope of layer 0 (Qin et al., "Lightning Attention-2", 2024).
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.step_family import (
    Family,
    Gradients,
    Inputs,
    attention_pullback,
    attention_steps,
    gate_bar,
)
from scancheck.kernels.models.step_form import Steps

Decay = Callable[[Arithmetic, Inputs], Array | None]  # [T, B, HV, 1]


def _one(arithmetic: Arithmetic, inputs: Inputs) -> None:
    return None


def _gate(arithmetic: Arithmetic, inputs: Inputs) -> Array:
    return arithmetic.exp(inputs["g"])[..., None]


def _retention(arithmetic: Arithmetic, inputs: Inputs) -> Array:
    heads = np.arange(inputs["v"].shape[2], dtype=np.float64)
    return _constant(arithmetic.rounded(1.0 - 2.0 ** (-5.0 - heads)), inputs)


def _lightning(arithmetic: Arithmetic, inputs: Inputs) -> Array:
    # exp widens its argument, so that only its result is rounded into the format.
    count = inputs["v"].shape[2]
    logs = np.arange(count, dtype=np.longdouble) * np.longdouble(-8.0) / count
    return _constant(arithmetic.exp(logs), inputs)


def _constant(per_head: Array, inputs: Inputs) -> Array:
    return np.broadcast_to(per_head[:, None], (*inputs["v"].shape[:3], 1))


def _lower(decay: Decay, arithmetic: Arithmetic, inputs: Inputs) -> Steps:
    return attention_steps(arithmetic, inputs, decay=decay(arithmetic, inputs))


def _pullback(
    arithmetic: Arithmetic, inputs: Inputs, steps: Steps, bars: Steps
) -> Gradients:
    gradients = attention_pullback(arithmetic, inputs, bars)
    if "g" in inputs:
        gradients["g"] = gate_bar(arithmetic, steps.decay, bars.decay)[..., 0]
    return gradients


def _family(decay: Decay, *gates: str) -> Family:
    sequences = ("q", "k", "v", *gates)
    return Family(
        names=(*sequences, "initial_state"),
        optional=("initial_state",),
        sequences=frozenset(sequences),
        lower=partial(_lower, decay),
        lower_pullback=_pullback,
    )


LINEAR_ATTENTION = _family(_one)
SIMPLE_GLA = _family(_gate, "g")
RETENTION = _family(_retention)
LIGHTNING_ATTENTION = _family(_lightning)
