"""ssd, Mamba-2's scan with its gates, as steps.

    a = dt + dt_bias       d = softplus(a), or a
    S_t = exp(d_t A) S_{t-1} + B_t (d_t x_t)^T
    y_t = (S_t^T C_t + D x_t) silu(z_t)

Source: Dao and Gu, "Transformers are SSMs" (2024). x, z [B, T, H, P];
dt [B, T, H]; B, C [B, T, G, N], head h uses group h // (H / G); A, D, dt_bias [H];
states [B, H, P, N].
"""

from functools import partial

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.reduction import ascending_sum, sum_over_tokens
from scancheck.kernels.models.step_family import (
    Family,
    Gradients,
    Inputs,
    gathered,
    log_decay_bar,
    spread,
)
from scancheck.kernels.models.step_form import Steps


def _step_size(
    dt_softplus: bool, arithmetic: Arithmetic, inputs: Inputs
) -> tuple[Array, Array]:
    """The argument of softplus and d, both [T, B, H]."""
    argument = inputs["dt"]
    if "dt_bias" in inputs:
        argument = arithmetic.add_wider(argument, inputs["dt_bias"])
    return argument, arithmetic.softplus(argument) if dt_softplus else argument


def _lower(dt_softplus: bool, arithmetic: Arithmetic, inputs: Inputs) -> Steps:
    heads = inputs["x"].shape[2]
    _, d = _step_size(dt_softplus, arithmetic, inputs)
    log_decay = arithmetic.mul(d, inputs["A"])[..., None]
    return Steps(
        keys=spread(inputs["B"], heads),
        values=arithmetic.mul(d[..., None], inputs["x"]),
        reads=spread(inputs["C"], heads),
        decay=arithmetic.exp(log_decay),
        log_decay=log_decay,
    )


def _pullback(
    dt_softplus: bool,
    arithmetic: Arithmetic,
    inputs: Inputs,
    steps: Steps,
    bars: Steps,
) -> Gradients:
    mul = arithmetic.mul
    groups = inputs["B"].shape[2]
    argument, d = _step_size(dt_softplus, arithmetic, inputs)
    log_bar = log_decay_bar(arithmetic, steps, bars)[..., 0]
    written = ascending_sum(arithmetic, mul(bars.values, inputs["x"]), -1)
    step_bar = arithmetic.add(mul(log_bar, inputs["A"]), written)
    if dt_softplus:
        step_bar = mul(step_bar, arithmetic.sigmoid(argument))
    gradients = {
        "x": mul(bars.values, d[..., None]),
        "dt": step_bar,
        "A": sum_over_tokens(arithmetic, mul(log_bar, d)),
        "B": gathered(arithmetic, bars.keys, groups),
        "C": gathered(arithmetic, bars.reads, groups),
    }
    if "dt_bias" in inputs:
        gradients["dt_bias"] = sum_over_tokens(arithmetic, step_bar)
    return gradients


def _ungated(arithmetic: Arithmetic, inputs: Inputs, o: Array) -> Array:
    """S^T C + D x, [T, B, H, P]."""
    if "D" not in inputs:
        return o
    return arithmetic.add(o, arithmetic.mul(inputs["D"][:, None], inputs["x"]))


def _epilogue(arithmetic: Arithmetic, inputs: Inputs, o: Array) -> Array:
    y = _ungated(arithmetic, inputs, o)
    if "z" in inputs:
        y = arithmetic.mul(y, arithmetic.silu(inputs["z"]))
    return y


def _epilogue_pullback(
    arithmetic: Arithmetic, inputs: Inputs, o: Array, ybar: Array
) -> tuple[Array, Gradients]:
    mul = arithmetic.mul
    gradients, pbar = {}, ybar
    if "z" in inputs:
        gated = mul(ybar, _ungated(arithmetic, inputs, o))
        gradients["z"] = mul(gated, arithmetic.silu_slope(inputs["z"]))
        pbar = mul(ybar, arithmetic.silu(inputs["z"]))
    if "D" in inputs:
        per_token = ascending_sum(arithmetic, mul(pbar, inputs["x"]), -1)
        gradients["D"] = sum_over_tokens(arithmetic, per_token)
        gradients["x"] = mul(pbar, inputs["D"][:, None])
    return pbar, gradients


def _family(dt_softplus: bool) -> Family:
    return Family(
        names=("x", "dt", "A", "B", "C", "D", "z", "dt_bias", "initial_states"),
        optional=("D", "z", "dt_bias", "initial_states"),
        sequences=frozenset(("x", "dt", "B", "C", "z")),
        lower=partial(_lower, dt_softplus),
        lower_pullback=partial(_pullback, dt_softplus),
        epilogue=_epilogue,
        epilogue_pullback=_epilogue_pullback,
        state="initial_states",
        value_major=True,
    )


SSD = _family(False)
SSD_OF_SOFTPLUS = _family(True)
