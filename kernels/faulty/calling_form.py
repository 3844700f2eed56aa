"""linear_scan and selective_scan in their calling form, in parts a bug may replace.

A scan takes decay and drive [B, T, ...] and the initial state [B, ...] in one format,
and returns h [B, T, ...] and the final state [B, ...]. Computation is in fp32, or in
fp64 for fp64 tensors; sequence outputs are rounded to the storage format, states are
not.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from scancheck.kernels.faulty import chunked_torch

Scan = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
Given = dict[str, Tensor]  # the tensors of a call by name, without those left out

# Above it softplus(x) is x: exp(-40) / 40 is below the unit roundoff of fp64.
SOFTPLUS_THRESHOLD = 40.0


def unchanged(given: Given) -> Given:
    """The tensors of the call as they came."""
    return given


def exact_softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) to within roundings, for any x."""
    return softplus(x, threshold=SOFTPLUS_THRESHOLD)


def exponential_decay(step: Tensor, A: Tensor) -> Tensor:
    """exp(step A), [B, L, D, N]."""
    return torch.exp(step[..., None] * A)


def written(step: Tensor, x: Tensor, keys: Tensor) -> Tensor:
    """B step u, [B, L, D, N]."""
    return (step * x)[..., None] * keys


def read(h: Tensor, keys: Tensor) -> Tensor:
    """C . h, [B, L, D]."""
    return (h * keys).sum(-1)


def skipped(D: Tensor, x: Tensor) -> Tensor:
    """D u, [B, L, D]."""
    return D * x


def rounded_once(sequence: Tensor, like: Tensor) -> Tensor:
    """The sequence output in the format of an input, a tensor of its own."""
    return sequence.to(like.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The steps of a call; the defaults are right, a planted bug replaces one."""

    given: Callable[[Given], Given] = unchanged  # the tensors that the call works on
    scan: Scan = chunked_torch.scan
    stored: Callable[[Tensor, Tensor], Tensor] = rounded_once
    # selective_scan alone:
    softplus: Callable[[Tensor], Tensor] = exact_softplus
    decay: Callable[[Tensor, Tensor], Tensor] = exponential_decay
    drive: Callable[[Tensor, Tensor, Tensor], Tensor] = written
    readout: Callable[[Tensor, Tensor], Tensor] = read
    skip: Callable[[Tensor, Tensor], Tensor] = skipped
    gate: Callable[[Tensor], Tensor] = silu


def linear_scan(form: Form, tensors: Given) -> tuple[Tensor, Tensor]:
    """h [B, T, D] in the format of `a`, and final_state [B, D].

    Tokens that `form.given` appends are computed, but not returned.
    """
    given = form.given(tensors)
    decay, drive = widened(given["a"]), widened(given["b"])
    initial_state = given.get("initial_state")
    if initial_state is None:
        initial_state = decay.new_zeros(decay.shape[0], decay.shape[2])
    h, final_state = form.scan(decay, drive, initial_state)
    steps = tensors["a"].shape[1]
    return form.stored(h[:, :steps], tensors["b"]), final_state


def selective_scan(
    form: Form, tensors: Given, *, delta_softplus: bool = False
) -> tuple[Tensor, Tensor]:
    """y [B, D, L] in the format of `u`, and last_state [B, D, N].

    u, delta, z [B, D, L]; A [D, N]; B, C [B, N, L], [B, G, N, L] or [D, N]; D and
    delta_bias [D]; initial_state [B, D, N]. The recurrence runs over [B, L, D, N].
    Tokens that `form.given` appends are computed, but not returned.
    """
    given = form.given(tensors)
    batch, channels, _ = given["u"].shape
    x = tokens_first(widened(given["u"]))
    step = tokens_first(widened(given["delta"]))
    if "delta_bias" in given:
        step = step + given["delta_bias"]
    if delta_softplus:
        step = form.softplus(step)
    A = given["A"]
    decay = form.decay(step, A)
    drive = form.drive(step, x, expanded_keys(widened(given["B"]), channels))
    initial_state = given.get("initial_state")
    if initial_state is None:
        initial_state = x.new_zeros(batch, channels, A.shape[1])
    h, last_state = form.scan(decay, drive, initial_state)
    y = form.readout(h, expanded_keys(widened(given["C"]), channels))
    if "D" in given:
        y = y + form.skip(given["D"], x)
    if "z" in given:
        y = y * form.gate(tokens_first(widened(given["z"])))
    steps = tensors["u"].shape[2]
    return form.stored(tokens_first(y[:, :steps]), tensors["u"]), last_state


def widened(x: Tensor) -> Tensor:
    """The tensor in the format of computation: fp64 stays, all else becomes fp32."""
    return x if x.dtype == torch.float64 else x.to(torch.float32)


def tokens_first(x: Tensor) -> Tensor:
    """[B, D, L] as [B, L, D], and back."""
    return x.transpose(1, 2)


def expanded_keys(keys: Tensor, channels: int) -> Tensor:
    """B or C so that it broadcasts with [B, L, D, N]."""
    match keys.ndim:
        case 2:
            return keys
        case 3:
            return tokens_first(keys)[:, :, None]
        case _:
            per_channel = keys.repeat_interleave(channels // keys.shape[1], dim=1)
            return per_channel.permute(0, 3, 1, 2)
