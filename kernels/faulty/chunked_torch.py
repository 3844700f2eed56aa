"""A correct chunked scan in plain torch operations, and the parts planted bugs share.

    h_t = decay_t h_{t-1} + drive_t        elementwise, decay and drive [B, T, ...]

Two passes: every chunk is scanned from a zero state, all chunks in lockstep; the states
entering the chunks are chained, and each is decayed into its chunk. A planted bug uses
the same parts and gets one of them wrong. `scan`, put together from these parts without
a fault, is the control: it has to pass wherever a bug is caught.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalScan:
    """Every chunk scanned from a zero state: K chunks of C tokens."""

    h: Tensor  # [B, K, C, ...]: states, the state entering the chunk left out
    decay: Tensor  # [B, K, C, ...]: product of the decays since the chunk's first token

    @property
    def totals(self) -> list[tuple[Tensor, Tensor]]:
        """Decay and state of each whole chunk, [B, ...] each."""
        decays, states = self.decay[:, :, -1], self.h[:, :, -1]
        return list(zip(decays.unbind(1), states.unbind(1), strict=True))


def split_into_chunks(
    decay: Tensor, drive: Tensor, *, identity: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Both as [B, K, C, ...], at least one chunk, padded with (identity, 0).

    The identity of log decays is 0.
    """
    steps = decay.shape[1]
    missing = CHUNK if steps == 0 else -steps % CHUNK
    margin = (0, 0) * (decay.ndim - 2) + (0, missing)
    shape = (decay.shape[0], (steps + missing) // CHUNK, CHUNK, *decay.shape[2:])
    return (
        pad(decay, margin, value=identity).reshape(shape),
        pad(drive, margin, value=0.0).reshape(shape),
    )


def scan_chunks(decay: Tensor, drive: Tensor) -> LocalScan:
    """The scan of every chunk from a zero state, from [B, T, ...]."""
    decays, drives = split_into_chunks(decay, drive)
    # unbind, not indexing: the backward of an index fills a tensor of the whole length.
    tokens = zip(decays.unbind(2), drives.unbind(2), strict=True)
    product, state = next(tokens)
    products, states = [product], [state]
    for a, b in tokens:
        product = a * product
        state = a * state + b
        products.append(product)
        states.append(state)
    return LocalScan(h=torch.stack(states, 2), decay=torch.stack(products, 2))


def chain_carries(
    totals: Iterable[tuple[Tensor, Tensor]], initial_state: Tensor
) -> list[Tensor]:
    """The state entering each chunk, then the final state, [B, ...] each."""
    carries = [initial_state]
    for decay, state in totals:
        carries.append(decay * carries[-1] + state)
    return carries


def add_carries(local: LocalScan, entering: list[Tensor], steps: int) -> Tensor:
    """h [B, T, ...]: each chunk with the state entering it decayed into it."""
    carried = local.decay * torch.stack(entering, 1)[:, :, None]
    return (local.h + carried).flatten(1, 2)[:, :steps]


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h [B, T, ...] and the final state [B, ...], without a fault."""
    local = scan_chunks(decay, drive)
    *entering, final_state = chain_carries(local.totals, initial_state)
    return add_carries(local, entering, decay.shape[1]), final_state
