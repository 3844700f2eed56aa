"""Planted bug: Hillis-Steele inside a chunk without a second buffer.

The race is imitated in one fixed order: a warp of 32 tokens reads and writes in
lockstep, and the second warp of a chunk starts when the first has written. Where it
reads across the warp edge it finds tokens combined twice. The last token of a chunk
reads across only when the first warp is done, so that its carry is right.
"""

from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import (
    CHUNK,
    LocalScan,
    add_carries,
    chain_carries,
    split_into_chunks,
)

WARP = 32


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h, wrong from token 32 of each chunk on, and a right final state."""
    products, states = split_into_chunks(decay, drive)
    offset = 1
    while offset < CHUNK:
        for warp in range(0, CHUNK, WARP):
            products, states = combine_warp(products, states, warp, offset)
        offset *= 2
    local = LocalScan(h=states, decay=products)
    *entering, final_state = chain_carries(local.totals, initial_state)
    return add_carries(local, entering, decay.shape[1]), final_state


def combine_warp(
    products: Tensor, states: Tensor, warp: int, offset: int
) -> tuple[Tensor, Tensor]:
    """Both [B, K, C, ...] after one warp has combined with what is `offset` before."""
    here = slice(max(warp, offset), warp + WARP)
    before = slice(here.start - offset, here.stop - offset)
    combined = products[:, :, here] * states[:, :, before] + states[:, :, here]
    product = products[:, :, here] * products[:, :, before]
    # New tensors for autograd alone: the next warp reads what this one wrote.
    products, states = products.clone(), states.clone()
    products[:, :, here] = product
    states[:, :, here] = combined
    return products, states
