"""Several delta steps for each token, after one decay, as steps.

    S' = exp(g_t) S_{t-1}
    S' = S' + k_tj (beta_tj (v_tj - S'^T k_tj))^T    for j = 0 .. M - 1    S_t = S'
    o_t = K**-0.5 S_t^T q_t

Source: Siems et al., "DeltaProduct" (2025). k [B, T, M, H, K]; v [B, T, M, H, V];
beta [B, T, M, H]; q [B, T, H, K]; g [B, T, H]. The later steps of a token decay by one,
which rounds nothing, and only its last step is read.
"""

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.step_family import (
    Family,
    Gradients,
    Inputs,
    gate_bar,
    scaled_reads,
)
from scancheck.kernels.models.step_form import Steps


def _in_steps(x: Array) -> Array:
    """[T, B, M, ...] -> [T M, B, ...]."""
    x = np.ascontiguousarray(x.swapaxes(1, 2))
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _per_token(x: Array, like: Array) -> Array:
    """[T M, B, ...] -> [T, B, M, ...] of `like`."""
    tokens, _, substeps, *_ = like.shape
    return x.reshape(tokens, substeps, *x.shape[1:]).swapaxes(1, 2)


def _at_last(x: Array, substeps: int) -> Array:
    """[T, ...] -> [T M, ...], zero but at the last step of each token."""
    made = np.zeros((len(x), substeps, *x.shape[1:]), x.dtype)
    made[:, -1] = x
    return made.reshape(len(x) * substeps, *x.shape[1:])


def _lower(arithmetic: Arithmetic, inputs: Inputs) -> Steps:
    substeps = inputs["k"].shape[2]
    decay = np.ones((*inputs["g"].shape, substeps), arithmetic.dtype)
    decay[..., 0] = arithmetic.exp(inputs["g"])
    return Steps(
        keys=_in_steps(inputs["k"]),
        values=_in_steps(inputs["v"]),
        reads=_at_last(scaled_reads(arithmetic, inputs["q"]), substeps),
        decay=_in_steps(decay.transpose(0, 1, 3, 2))[..., None],
        beta=_in_steps(inputs["beta"])[..., None],
    )


def _pullback(
    arithmetic: Arithmetic, inputs: Inputs, steps: Steps, bars: Steps
) -> Gradients:
    assert bars.beta is not None
    substeps = inputs["k"].shape[2]
    last = slice(substeps - 1, None, substeps)
    gate = gate_bar(arithmetic, steps.decay, bars.decay)[..., 0]
    return {
        "q": scaled_reads(arithmetic, bars.reads[last]),
        "k": _per_token(bars.keys, inputs["k"]),
        "v": _per_token(bars.values, inputs["v"]),
        "beta": _per_token(bars.beta[..., 0], inputs["beta"]),
        "g": gate[::substeps],
    }


def _epilogue(arithmetic: Arithmetic, inputs: Inputs, o: Array) -> Array:
    substeps = inputs["k"].shape[2]
    return o[substeps - 1 :: substeps]


def _epilogue_pullback(
    arithmetic: Arithmetic, inputs: Inputs, o: Array, ybar: Array
) -> tuple[Array, Gradients]:
    return _at_last(ybar, inputs["k"].shape[2]), {}


_SEQUENCES = ("q", "k", "v", "beta", "g")
GATED_DELTA_PRODUCT = Family(
    names=(*_SEQUENCES, "initial_state"),
    optional=("initial_state",),
    sequences=frozenset(_SEQUENCES),
    lower=_lower,
    lower_pullback=_pullback,
    epilogue=_epilogue,
    epilogue_pullback=_epilogue_pullback,
)
