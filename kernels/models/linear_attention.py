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
    log_decay_bar,
)
from scancheck.kernels.models.step_form import Steps

# The decay and its logarithm, [T, B, HV, 1] each.
Decay = Callable[[Arithmetic, Inputs], tuple[Array | None, Array | None]]


def _one(arithmetic: Arithmetic, inputs: Inputs) -> tuple[None, None]:
    return None, None


def _gate(arithmetic: Arithmetic, inputs: Inputs) -> tuple[Array, Array]:
    log_decay = inputs["g"][..., None]
    return arithmetic.exp(log_decay), log_decay


def _retention(arithmetic: Arithmetic, inputs: Inputs) -> tuple[Array, Array]:
    powers = 2.0 ** (-5.0 - np.arange(inputs["v"].shape[2], dtype=np.longdouble))
    decay = arithmetic.rounded(1.0 - powers)
    logs = arithmetic.rounded(np.log1p(-powers))
    return _constant(decay, inputs), _constant(logs, inputs)


def _lightning(arithmetic: Arithmetic, inputs: Inputs) -> tuple[Array, Array]:
    # exp widens its argument, so that only its result is rounded into the format. The
    # op's log decay is the one that fp64 has.
    count = inputs["v"].shape[2]
    logs = np.arange(count, dtype=np.float64) * (-8.0 / count)
    decay = arithmetic.exp(logs)
    return _constant(decay, inputs), _constant(arithmetic.rounded(logs), inputs)


def _constant(per_head: Array, inputs: Inputs) -> Array:
    return np.broadcast_to(per_head[:, None], (*inputs["v"].shape[:3], 1))


def _lower(decay: Decay, arithmetic: Arithmetic, inputs: Inputs) -> Steps:
    w, log_w = decay(arithmetic, inputs)
    return attention_steps(arithmetic, inputs, decay=w, log_decay=log_w)


def _pullback(
    arithmetic: Arithmetic, inputs: Inputs, steps: Steps, bars: Steps
) -> Gradients:
    gradients = attention_pullback(arithmetic, inputs, bars)
    if "g" in inputs:
        gradients["g"] = log_decay_bar(arithmetic, steps, bars)[..., 0]
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
