"""Linear attention divided by its running sum of keys, as steps.

    S_t = S_{t-1} + k_t v_t^T        z_t = z_{t-1} + k_t
    o_t = S_t^T r_t / (z_t . r_t + 1e-10)        r = K**-0.5 q

Source: Katharopoulos et al., "Transformers are RNNs" (2020), equation 12. z is a lane
of S behind those of v, whose value is one.
"""

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.reduction import ascending_sum
from scancheck.kernels.models.step_family import (
    Family,
    Gradients,
    Inputs,
    attention_pullback,
    attention_steps,
)
from scancheck.kernels.models.step_form import Steps

FLOOR = 1e-10


def _lower(arithmetic: Arithmetic, inputs: Inputs) -> Steps:
    ones = np.ones_like(inputs["v"][..., :1])
    values = np.concatenate([inputs["v"], ones], -1)
    return attention_steps(arithmetic, inputs | {"v": values})


def _pullback(
    arithmetic: Arithmetic, inputs: Inputs, steps: Steps, bars: Steps
) -> Gradients:
    gradients = attention_pullback(arithmetic, inputs, bars)
    return gradients | {"v": bars.values[..., :-1]}


def _parts(arithmetic: Arithmetic, o: Array) -> tuple[Array, Array]:
    """S^T r [..., V] and the denominator [..., 1]."""
    floor = arithmetic.rounded(np.asarray(FLOOR))
    return o[..., :-1], arithmetic.add(o[..., -1:], floor)


def _epilogue(arithmetic: Arithmetic, inputs: Inputs, o: Array) -> Array:
    return arithmetic.div(*_parts(arithmetic, o))


def _epilogue_pullback(
    arithmetic: Arithmetic, inputs: Inputs, o: Array, ybar: Array
) -> tuple[Array, Gradients]:
    """With y = n / d: nbar = ybar / d and dbar = -(nbar . n) / d."""
    n, d = _parts(arithmetic, o)
    n_bar = arithmetic.div(ybar, d)
    along = ascending_sum(arithmetic, arithmetic.mul(n_bar, n), -1)[..., None]
    return np.concatenate([n_bar, -arithmetic.div(along, d)], -1), {}


def _state_in(zeros: Array, state: Array | None, key_sum: Array | None) -> Array:
    made = zeros.copy()
    if state is not None:
        made[..., :-1] = state
    if key_sum is not None:
        made[..., -1] = key_sum
    return made


def _state_out(state: Array) -> tuple[Array, Array]:
    return state[..., :-1], state[..., -1]


NORMALIZED_LINEAR_ATTENTION = Family(
    names=("q", "k", "v", "initial_state", "initial_key_sum"),
    optional=("initial_state", "initial_key_sum"),
    sequences=frozenset(("q", "k", "v")),
    lower=_lower,
    lower_pullback=_pullback,
    epilogue=_epilogue,
    epilogue_pullback=_epilogue_pullback,
    further_state=("initial_key_sum",),
    state_in=_state_in,
    state_out=_state_out,
)
