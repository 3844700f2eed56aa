"""The matrix LSTM of xLSTM with its stabiliser, as steps.

    l_t = -softplus(-f_t)        m_t = max(l_t + m_{t-1}, i_t)
    S_t = e^(l_t + m_{t-1} - m_t) S_{t-1} + (e^(i_t - m_t) k_t) (v_t, 1)^T
    h_t = C_t^T r_t / (max(|n_t . r_t|, e^-m_t) + 1e-6)        r = K**-0.5 q

Source: Beck et al., "xLSTM" (2024), equations 19 to 27. n is a lane of S behind those
of C, whose value is one. The backward pass goes through m as it is written.
"""

from typing import NamedTuple

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.reduction import ascending_sum
from scancheck.kernels.models.step_family import (
    Family,
    Gradients,
    Inputs,
    gate_bar,
    scaled_reads,
)
from scancheck.kernels.models.step_form import Steps

FLOOR = 1e-6


class Gates(NamedTuple):
    """What i and f make of each token, all [T, B, H]."""

    m: Array
    decay: Array  # e^(l + m_{t-1} - m)
    gain: Array  # e^(i - m)
    keeps: Array  # whether the decay is the larger branch of m


def gates_of(arithmetic: Arithmetic, inputs: Inputs) -> Gates:
    """m from the first token on, and the exponentials that it is taken off."""
    forget = -arithmetic.softplus(-inputs["f"])
    before = _first_m(arithmetic, inputs)
    m, kept = np.empty_like(forget), np.empty_like(forget)
    for t in range(len(forget)):
        kept[t] = arithmetic.add_wider(forget[t], before)
        m[t] = before = np.maximum(kept[t], inputs["i"][t])
    return Gates(
        m=m,
        decay=arithmetic.exp(arithmetic.sub(kept, m)),
        gain=arithmetic.exp(arithmetic.sub(inputs["i"], m)),
        keeps=kept > inputs["i"],
    )


def _first_m(arithmetic: Arithmetic, inputs: Inputs) -> Array:
    """The initial m, or zeros, [B, H]."""
    zeros = np.zeros(inputs["f"].shape[1:], arithmetic.dtype)
    return inputs.get("initial_max", zeros)


def _lower(arithmetic: Arithmetic, inputs: Inputs) -> Steps:
    gates = gates_of(arithmetic, inputs)
    ones = np.ones_like(inputs["v"][..., :1])
    return Steps(
        keys=arithmetic.mul(gates.gain[..., None], inputs["k"]),
        values=np.concatenate([inputs["v"], ones], -1),
        reads=scaled_reads(arithmetic, inputs["q"]),
        decay=gates.decay[..., None],
    )


def _pullback(
    arithmetic: Arithmetic, inputs: Inputs, steps: Steps, bars: Steps
) -> Gradients:
    gain = gates_of(arithmetic, inputs).gain
    products = ascending_sum(arithmetic, arithmetic.mul(bars.keys, inputs["k"]), -1)
    return {
        "q": scaled_reads(arithmetic, bars.reads),
        "k": arithmetic.mul(gain[..., None], bars.keys),
        "v": bars.values[..., :-1],
        "log_gain": arithmetic.mul(gain, products),
        "log_forget": gate_bar(arithmetic, steps.decay, bars.decay)[..., 0],
    }


class _Ratio(NamedTuple):
    """The parts of the read-out's quotient."""

    above: Array  # C^T r, [..., V]
    read: Array  # n . r, [..., 1]
    floor: Array  # e^-m, [..., 1]
    below: Array  # the denominator, [..., 1]


def _ratio(arithmetic: Arithmetic, inputs: Inputs, o: Array) -> _Ratio:
    read, m = o[..., -1:], gates_of(arithmetic, inputs).m[..., None]
    floor = arithmetic.exp(-m)
    added = arithmetic.rounded(np.asarray(FLOOR))
    below = arithmetic.add(np.maximum(np.abs(read), floor), added)
    return _Ratio(above=o[..., :-1], read=read, floor=floor, below=below)


def _epilogue(arithmetic: Arithmetic, inputs: Inputs, o: Array) -> Array:
    ratio = _ratio(arithmetic, inputs, o)
    return arithmetic.div(ratio.above, ratio.below)


def _epilogue_pullback(
    arithmetic: Arithmetic, inputs: Inputs, o: Array, ybar: Array
) -> tuple[Array, Gradients]:
    """With y = x / d: xbar = ybar / d and dbar = -(xbar . x) / d."""
    ratio = _ratio(arithmetic, inputs, o)
    x_bar = arithmetic.div(ybar, ratio.below)
    along = ascending_sum(arithmetic, arithmetic.mul(x_bar, ratio.above), -1)
    d_bar = -arithmetic.div(along[..., None], ratio.below)
    by_read = np.abs(ratio.read) > ratio.floor
    read_bar = np.where(by_read, d_bar * np.sign(ratio.read), 0.0)
    floor_bar = arithmetic.mul(np.where(by_read, 0.0, d_bar), ratio.floor)
    o_bar = np.concatenate([x_bar, read_bar.astype(x_bar.dtype)], -1)
    return o_bar, {"log_floor": floor_bar[..., 0]}


def _final_m(arithmetic: Arithmetic, inputs: Inputs) -> tuple[Array]:
    m = gates_of(arithmetic, inputs).m
    return (m[-1] if len(m) else _first_m(arithmetic, inputs),)


def _finish(
    arithmetic: Arithmetic,
    inputs: Inputs,
    gradients: Gradients,
    bars: tuple[Array, ...],
) -> Gradients:
    """From the exponents to f, i and the first m, token by token from the last."""
    add, mul = arithmetic.add, arithmetic.mul
    (carry,) = bars
    keeps = gates_of(arithmetic, inputs).keeps
    forget, gain, floor = (
        gradients.pop(name) for name in ("log_forget", "log_gain", "log_floor")
    )
    taken_off = add(add(forget, gain), floor)
    forget_bar, i_bar = np.empty_like(forget), np.empty_like(gain)
    for t in reversed(range(len(keeps))):
        # The cotangent of the last m may be of a wider format.
        total = arithmetic.add_wider(-taken_off[t], carry)
        kept = np.where(keeps[t], total, 0.0).astype(total.dtype)
        i_bar[t] = add(gain[t], np.where(keeps[t], 0.0, total).astype(total.dtype))
        forget_bar[t] = add(forget[t], kept)
        carry = add(kept, forget[t])
    slope = arithmetic.sigmoid(-inputs["f"])
    return gradients | {
        "f": mul(forget_bar, slope),
        "i": i_bar,
        "initial_max": carry,
    }


def _state_in(
    zeros: Array, state: Array | None, normaliser: Array | None, m: Array | None
) -> Array:
    made = zeros.copy()
    if state is not None:
        made[..., :-1] = state
    if normaliser is not None:
        made[..., -1] = normaliser
    return made


def _state_out(state: Array) -> tuple[Array, Array]:
    return state[..., :-1], state[..., -1]


_SEQUENCES = ("q", "k", "v", "i", "f")
_STATE = ("initial_state", "initial_normalizer", "initial_max")
MLSTM = Family(
    names=(*_SEQUENCES, *_STATE),
    optional=_STATE,
    sequences=frozenset(_SEQUENCES),
    lower=_lower,
    lower_pullback=_pullback,
    epilogue=_epilogue,
    epilogue_pullback=_epilogue_pullback,
    further_state=_STATE[1:],
    state_in=_state_in,
    state_out=_state_out,
    further_final=_final_m,
    finish=_finish,
)
