"""Scans in chunks of 64 as users write them in torch, one of every log form.

Their gradients are autograd's, which reuses the sums, exponentials and products of the
forward pass.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK = 64
Chunk = Callable[[Tensor, Tensor, Tensor], Tensor]


def difference(*, g: Tensor, b: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """exp(c_t - c_j), masked before the exponential."""
    return _chained(_by_differences, g, b, initial_state)


def segment_sums(
    *, g: Tensor, b: Tensor, initial_state: Tensor
) -> tuple[Tensor, Tensor]:
    """exp of a running sum that starts after j, as Mamba-2's segsum."""
    return _chained(_by_segment_sums, g, b, initial_state)


def factored(*, g: Tensor, b: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """exp(c_t) times the running sum of exp(-c_j) b_j."""
    return _chained(_by_factors, g, b, initial_state)


def ratio(*, g: Tensor, b: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """The cumulative product of the decays times the running sum of b_j over it."""
    return _chained(_by_ratios, g, b, initial_state)


def _chained(form: Chunk, g: Tensor, b: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    batch, steps, lanes = b.shape
    shape = (batch, -1, CHUNK, lanes)
    log, x = (pad(v, (0, 0, 0, -steps % CHUNK)).reshape(shape) for v in (g, b))
    out = []
    for k in range(log.shape[1]):
        out.append(form(log[:, k], x[:, k], s))
        s = out[-1][:, -1]
    h = torch.cat(out, 1)[:, :steps] if out else torch.zeros_like(b)
    return h, s.clone()


def _lower(diagonal: int = 0) -> Tensor:
    ones = torch.ones(CHUNK, CHUNK, dtype=torch.bool)
    return torch.tril(ones, diagonal)[None, :, :, None]


def _by_differences(log: Tensor, x: Tensor, s: Tensor) -> Tensor:
    c = log.cumsum(1)
    gaps = (c[:, :, None] - c[:, None]).masked_fill(~_lower(), -torch.inf)
    return (torch.exp(gaps) * x[:, None]).sum(2) + torch.exp(c) * s[:, None]


def _by_segment_sums(log: Tensor, x: Tensor, s: Tensor) -> Tensor:
    steps = log[:, :, None].expand(-1, -1, CHUNK, -1).masked_fill(~_lower(-1), 0.0)
    sums = steps.cumsum(1).masked_fill(~_lower(), -torch.inf)
    whole = torch.exp(log.cumsum(1)) * s[:, None]
    return (torch.exp(sums) * x[:, None]).sum(2) + whole


def _by_factors(log: Tensor, x: Tensor, s: Tensor) -> Tensor:
    c = log.cumsum(1)
    return torch.exp(c) * s[:, None] + torch.exp(c) * (torch.exp(-c) * x).cumsum(1)


def _by_ratios(log: Tensor, x: Tensor, s: Tensor) -> Tensor:
    p = torch.exp(log).cumprod(1)
    return p * (s[:, None] + (x / p).cumsum(1))
