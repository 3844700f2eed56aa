"""Data on which every order of combination is exact: any difference is a bug."""

import numpy as np
from numpy.typing import NDArray

from scancheck.formats import IntArray
from scancheck.recipes.chains import Plan, Tensors, draws
from scancheck.recipes.exact_heads import exact_heads, place_in_heads
from scancheck.recipes.pairs import LONGEST, SHORTEST, pair_tokens
from scancheck.recipes.scans import keys_shape
from scancheck.recipes.streams import integers, signs

BoolArray = NDArray[np.bool_]

EXACT_RESET = -1024.0  # exp of it is zero in every format


def exact_dyadic(plan: Plan) -> Tensors:
    """Small integers, decays 0, 1/2 and 1: no partial result has more than 8 bits.

    Source: numerics.md 3, family 22.
    """
    match plan.op:
        case "linear_scan":
            return _linear_scan(plan)
        case "selective_scan":
            return _selective_scan(plan)
        case _:
            return exact_heads(plan)


def _linear_scan(plan: Plan) -> Tensors:
    """Resets every 8 to 16 tokens, at most two halvings between them.

    A segment adds at most 16 drives of size 3 to a state of at most 8, in steps of
    1/4: no more than 224 of them. Form g has no halvings, as exp(g) = 1/2 has no
    exact g.
    """
    resets, halvings = _marks(plan)
    if plan.form == "a":
        gate = np.where(resets, 0.0, np.where(halvings, 0.5, 1.0))
    else:
        gate = np.where(resets, EXACT_RESET, 0.0)
    return {
        str(plan.form): gate,
        "b": integers(draws(plan, "drive"), -3, 3, plan.sequence).astype(np.float64),
        "initial_state": integers(draws(plan, "state"), -8, 8, plan.state[:2]).astype(
            np.float64
        ),
    }


def _marks(plan: Plan) -> tuple[BoolArray, BoolArray]:
    """Where each chain [B, T, D] is reset, and where it is halved."""
    batch, steps, channels = plan.sequence
    segments = steps // SHORTEST + 1
    lengths = integers(
        draws(plan, "segments"), SHORTEST, LONGEST, (batch, segments, channels)
    )
    ends = lengths.cumsum(axis=1)
    starts = ends - lengths
    resets = np.zeros(plan.sequence, dtype=bool)
    halvings = np.zeros(plan.sequence, dtype=bool)
    _mark(resets, ends)
    for name in ("first", "second"):
        offset = integers(draws(plan, name), 1, SHORTEST - 1, starts.shape)
        _mark(halvings, starts + offset)
    return resets, halvings


def _mark(marks: BoolArray, tokens: IntArray) -> None:
    """Sets the tokens [B, n, D] of each chain, those beyond the end left out."""
    row, nth, channel = np.nonzero(tokens < marks.shape[1])
    marks[row, tokens[row, nth, channel], channel] = True


def _selective_scan(plan: Plan) -> Tensors:
    """Steps 0 or 1 and A = 0 (a sum) or -1024 (a reset at every step of 1).

    Drives come in pairs x, -x under equal B, at most two pairs open at a time, beside
    one drive on the first and one on the last token, so that a sum stays within
    4 * 3 + 2. At most 16 states are read, with |C| <= 1: together with D u no more
    than 230 ones.
    """
    opened, closed = pair_tokens(plan)
    pairs = (*opened.shape, plan.channels)
    size = integers(draws(plan, "drive"), 1, 3, pairs) * signs(
        draws(plan, "sign"), pairs
    )
    u = np.zeros(plan.sequence)
    rows = np.arange(plan.batch)[:, None]
    step = integers(draws(plan, "step"), 0, 1, plan.sequence).astype(np.float64)
    u[rows, opened] = size
    u[rows, closed] = -size
    step[rows, opened] = step[rows, closed] = 1.0
    for end in (slice(0, 1), slice(-1, None)):
        u[:, end] = integers(draws(plan, f"end {end.start}"), 1, 3, u[:, end].shape)
        step[:, end] = 1.0
    idle = integers(draws(plan, "idle"), -3, 3, plan.sequence)
    u = np.where(step == 0.0, idle, u)
    bias = integers(draws(plan, "bias"), 0, int(plan.bias), (plan.channels,))
    resetting = integers(draws(plan, "A"), 0, 1, plan.speeds)
    written = signs(draws(plan, "B"), keys_shape(plan))
    if plan.keys != "constant":
        written[rows, ..., closed] = written[rows, ..., opened]
    read = integers(draws(plan, "C"), -1, 1, keys_shape(plan)).astype(np.float64)
    states = np.arange(plan.states) < 16
    read *= states if plan.keys == "constant" else states[:, None]
    return {
        "u": u.transpose(0, 2, 1),
        "delta": (step - bias).transpose(0, 2, 1),
        "A": np.where(resetting == 1, EXACT_RESET, 0.0),
        "B": written,
        "C": read,
        "D": integers(draws(plan, "D"), -2, 2, (plan.channels,)).astype(np.float64),
        "z": np.zeros((plan.batch, plan.channels, plan.steps)),
        "delta_bias": bias.astype(np.float64),
        "initial_state": integers(draws(plan, "state"), -2, 2, plan.state).astype(
            np.float64
        ),
    }


def values_tell_their_place(plan: Plan) -> Tensors:
    """Every token forgets the past and writes a number that tells where it stands.

    (token + 83 channel + 167 row) mod 251: an output that is stale, shifted, transposed
    or taken from another row, channel or tile is the number of another place.

    Source: numerics.md 3, family 21.
    """
    row, token, channel = np.indices(plan.sequence)
    first = int(integers(draws(plan, "first"), 0, 250, ()))
    place = ((first + token + 83 * channel + 167 * row) % 251).astype(np.float64)
    if plan.op == "linear_scan":
        gate = np.zeros_like(place)
        return {
            str(plan.form): gate if plan.form == "a" else gate + EXACT_RESET,
            "b": place,
            "initial_state": signs(draws(plan, "state"), plan.state[:2]),
        }
    if plan.op != "selective_scan":
        return place_in_heads(plan, place)
    bias = np.full(plan.channels, float(plan.bias))
    read = np.zeros(keys_shape(plan))
    one = (Ellipsis, 0) if plan.keys == "constant" else (Ellipsis, 0, slice(None))
    read[one] = 1.0
    return {
        "u": place.transpose(0, 2, 1),
        "delta": (np.ones_like(place) - bias).transpose(0, 2, 1),
        "A": np.full(plan.speeds, EXACT_RESET),
        "B": np.ones(keys_shape(plan)),
        "C": read,
        "D": np.zeros(plan.channels),
        "z": np.zeros((plan.batch, plan.channels, plan.steps)),
        "delta_bias": bias,
        "initial_state": signs(draws(plan, "state"), plan.state),
    }
