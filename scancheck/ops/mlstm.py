"""mlstm: the matrix LSTM of xLSTM, a normalised memory with exponential gates.

    m_t = max(logsigmoid(f_t) + m_{t-1}, i_t)                     its stabiliser
    C_t = e^(logsigmoid(f_t) + m_{t-1} - m_t) C_{t-1} + e^(i_t - m_t) k_t v_t^T
    n_t = e^(logsigmoid(f_t) + m_{t-1} - m_t) n_{t-1} + e^(i_t - m_t) k_t
    h_t = C_t^T r_t / (max(|n_t . r_t|, e^(-m_t)) + 1e-6)         r_t = K^-1/2 q_t

Source: Beck et al., "xLSTM" (2024), equations 19 to 27 and appendix A; the floor of
mlstm_kernels. q, k [B, T, H, K]; v [B, T, H, V]; i, f [B, T, H], before their
exponential and logsigmoid; initial_state [B, H, K, V], initial_normalizer [B, H, K],
initial_max [B, H], zero where absent; outputs h [B, T, H, V], final_state,
final_normalizer and final_max. (mlstm_kernels has heads before tokens.)

n is one more lane of S, whose value is always one: L = V + 1.

The step holds for any numbers in the place of m: C and n are then in units of their
exponential, and so are the floors e^(-m) and 1e-6. So S is run with `held`, the leading
digits of m taken as given: no exponential leaves the range, and errors of m, which
cancel, are not counted in every decay.

Gradients go through m as the formulas are written. What the units do cancels, save
where the second floor stands beside it: kernels that form those terms are off by their
rounding, which is in the budget, and kernels that take m as given by about 1e-6. Where
two branches of a maximum tie, a gradient has that of either.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from scancheck.ops.heads import (
    KEYS,
    group_shape,
    op_with_heads,
    per_head,
    per_head_pullback,
    per_key,
    per_key_pullback,
    per_lane,
    per_lane_back,
    scale,
    state_in,
    state_out,
)
from scancheck.ops.normal_form import (
    Cotangents,
    FloatArray,
    Lowered,
    Running,
    Tensors,
    TensorSpec,
    gate_cotangent,
)
from scancheck.ops.normalized_linear_attention import normaliser_of, values_of

FLOOR = 1e-6  # added to the denominator
GATES = ("B", "T", "H")
FOUND = ("log_forget", "m", "held", "held_before", "decays")
BARS = ("log_gain", "log_floor")  # beside log_forget, the exponents that have m


def constants(sizes: Mapping[str, int]) -> dict[str, FloatArray]:
    """The scale [1], a one [1], the floor [1], and a first m of zero [B, H]."""
    nothing = np.zeros((sizes["B"], sizes["H"]))
    return scale(sizes) | {
        "one": np.ones(1),
        "floor": np.full(1, FLOOR),
        "no_max": nothing,
    }


def in_a_row(parts: list[Any]) -> Any:
    """Numbers [B, H] of each token as one [B, T, H], halves joined to each other."""
    if len(parts) == 1:
        batch, heads = parts[0].shape
        return parts[0].reshape(batch, 1, heads)
    half = len(parts) // 2
    return in_a_row(parts[:half]).joined(in_a_row(parts[half:]), 1)


def find(everything: Tensors) -> dict[str, Any]:
    """logsigmoid(f), m, `held` of m_t and m_{t-1}, and 1 where the decay wins."""
    log_forget, new = -(-everything["f"]).softplus(), everything["i"]
    m = everything.get("initial_max", everything["no_max"])
    befores, after = [], []
    for t in range(log_forget.shape[1]):
        befores.append(m)
        m = (log_forget[:, t] + m).maximum(new[:, t])
        after.append(m)
    # Without a token all of them are empty, and so is log_forget.
    here, before = (in_a_row(x) if x else log_forget for x in (after, befores))
    return {
        "log_forget": log_forget,
        "m": here,
        "held": here.held(),
        "held_before": before.held(),
        "decays": (log_forget + before).exceeds(new),
    }


def _gain(tile: Tensors) -> Any:
    """e^(i - m), [B, T, H]."""
    return (tile["i"] + -tile["held"]).exp()


def lower(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
    """w = e^(logsigmoid(f) + m_{t-1} - m_t), k = e^(i - m) k, a one behind v."""
    heads = tile["v"].shape[2]
    log_w = per_head(tile["log_forget"] + tile["held_before"] + -tile["held"])
    groups, steps = log_w.shape[:2]
    ones = tile["one"][[0] * (groups * steps)].reshape(groups, steps, 1)
    lowered = Lowered(
        w=log_w.exp(),
        v=per_lane(tile["v"]).joined(ones, 2),
        k=per_key(tile["k"] * _gain(tile)[:, :, :, None], heads),
        r=per_key(tile["q"] * tile["scale"], heads),
        log_w=log_w,
    )
    return lowered, carry


def lower_pullback(
    tile: Tensors, lowered: Lowered, cotangents: Cotangents
) -> dict[str, Any]:
    """Back to the exponents of the gates, which are not inputs yet."""
    heads, gain = tile["v"].shape[2], _gain(tile)
    kbar = per_key_pullback(cotangents.k, tile["k"])
    return {
        "q": per_key_pullback(cotangents.r, tile["q"]) * tile["scale"],
        "k": kbar * gain[:, :, :, None],
        "v": per_lane_back(values_of(cotangents.v), heads),
        "log_gain": (kbar * tile["k"]).sum(3) * gain,
        "log_forget": per_head_pullback(gate_cotangent(lowered, cotangents), heads),
    }


def _parts(tile: Tensors, o: Any) -> tuple[Any, Any, Any, Any]:
    """n . r, its floor, what is added, and 1 / the denominator, all [G, T, 1]."""
    held = per_head(tile["held"])[:, :, :, 0]
    read = normaliser_of(o)
    floor = (-held).exp()
    added = (per_head(tile["m"])[:, :, :, 0] + -held).exp() * tile["floor"]
    share = (read.maximum(-read).maximum(floor) + added).reciprocal()
    return read, floor, added, share


def epilogue(tile: Tensors, o: Any) -> Any:
    """C^T r / (max(|n . r|, e^-m) + 1e-6), [B, T, H, V]."""
    *_, share = _parts(tile, o)
    return per_lane_back(values_of(o) * share, tile["v"].shape[2])


def epilogue_pullback(tile: Tensors, o: Any, ybar: Any) -> tuple[Any, dict[str, Any]]:
    """With y = x / d: xbar = ybar / d, dbar = -(ybar . y) / d; |n . r| or its floor."""
    read, floor, _, share = _parts(tile, o)
    of_values = per_lane(ybar) * share
    along = (of_values * values_of(o)).sum(2)[:, :, None]
    dbar = -(along * share)
    sign = read.exceeds(-read) + -((-read).exceeds(read))
    above = read.maximum(-read).exceeds(floor)
    of_floor = (dbar * above.one_minus() * floor)[:, :, :, None]
    gradients = {"log_floor": per_head_pullback(of_floor, tile["v"].shape[2])}
    return of_values.joined(dbar * (above * sign), 2), gradients


def final(everything: Tensors, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """C and n in units of e^m, and m."""
    factor, m = _last(everything)
    state, normaliser = parts
    if factor is None:
        return state, normaliser, m
    return (
        state * factor[:, :, None, None],
        normaliser * factor[:, :, None],
        m,
    )


def _last(everything: Tensors) -> tuple[Any, Any]:
    """e^(held - m) of the last token, None without one, and m; both [B, H]."""
    steps = everything["m"].shape[1]
    if not steps:
        return None, everything.get("initial_max", everything["no_max"])
    m = everything["m"][:, steps - 1]
    return (everything["held"][:, steps - 1] + -m).exp(), m


def final_pullback(
    everything: Tensors, bars: tuple[Any, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Cotangents of C and n in units of e^held, and that of the last m."""
    state, normaliser, mbar = bars
    factor, _ = _last(everything)
    if factor is None:
        return bars, {"m": mbar}
    parts = state * factor[:, :, None, None], normaliser * factor[:, :, None], mbar
    return parts, {"m": mbar}


def pullback(everything: Tensors, bars: dict[str, Any]) -> dict[str, Any]:
    """From exponents to f, i and the first m: m is in each of them.

    m_t is taken off logsigmoid(f_t) + m_{t-1} - m_t, i_t - m_t and -m_t.
    """
    carry, decays = bars["m"], everything["decays"]
    steps = decays.shape[1]
    if not steps:
        return {"initial_max": carry} if "initial_max" in everything else {}
    of_log = bars["log_forget"]
    taken_off = -(of_log + bars["log_gain"] + bars["log_floor"])
    totals, kept = [], []
    for t in reversed(range(steps)):
        totals.append(carry + taken_off[:, t])
        kept.append(totals[-1] * decays[:, t])
        carry = kept[-1] + of_log[:, t]
    forget = of_log + in_a_row(kept[::-1])
    new = in_a_row(totals[::-1]) * decays.one_minus()
    gradients = {
        "f": forget * (-everything["f"]).sigmoid(),
        "i": bars["log_gain"] + new,
    }
    if "initial_max" in everything:
        gradients["initial_max"] = carry
    return gradients


def all_in(state: Any, normaliser: Any, m: Any, sizes: Mapping[str, int]) -> Any:
    """[B, H, K, V] and [B, H, K] -> S [B H, K, V + 1]; m is a running number."""
    groups, keys, _ = group_shape(sizes)
    return state_in(state, sizes).joined(normaliser.reshape(groups, keys, 1), 2)


def all_out(state: Any, sizes: Mapping[str, int]) -> tuple[Any, Any]:
    """S [B H, K, V + 1] -> [B, H, K, V] and [B, H, K]."""
    normaliser = state_out(normaliser_of(state), sizes)
    return state_out(values_of(state), sizes), normaliser[:, :, :, 0]


def with_normaliser(sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """G, K, L = V + 1 of the normal form."""
    groups, keys, lanes = group_shape(sizes)
    return groups, keys, lanes + 1


_ATTENTION = op_with_heads(
    "mlstm",
    (
        TensorSpec(name="q", axes=KEYS),
        TensorSpec(name="k", axes=KEYS),
        TensorSpec(name="v", axes=("B", "T", "H", "V")),
        TensorSpec(name="i", axes=GATES),
        TensorSpec(name="f", axes=GATES),
    ),
    lower=lower,
    lower_pullback=lower_pullback,
    constants=constants,
    epilogue=epilogue,
    epilogue_pullback=epilogue_pullback,
)
_FURTHER = {"normalizer": ("B", "H", "K"), "max": ("B", "H")}
MLSTM = replace(
    _ATTENTION,
    inputs=(
        *_ATTENTION.inputs,
        *(
            TensorSpec(name=f"initial_{name}", axes=axes, kind="state", required=False)
            for name, axes in _FURTHER.items()
        ),
    ),
    outputs=(
        TensorSpec(name="h", axes=("B", "T", "H", "V")),
        _ATTENTION.outputs[1],
        *(
            TensorSpec(name=f"final_{name}", axes=axes, kind="state")
            for name, axes in _FURTHER.items()
        ),
    ),
    further_state=("initial_normalizer", "initial_max"),
    normalisers=1,
    state_in=all_in,
    state_out=all_out,
    group_shape=with_normaliser,
    running=Running(
        names=(*FOUND, *BARS),
        find=find,
        pullback=pullback,
        final=final,
        final_pullback=final_pullback,
    ),
)
