"""Planted bug: the state carried over a chunk edge is held within -1 and 1."""

from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import add_carries, scan_chunks

LIMIT = 1.0


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state; wrong once a carried state is larger."""
    local = scan_chunks(decay, drive)
    entering = [initial_state]
    for chunk_decay, state in local.totals[:-1]:
        carry = chunk_decay * entering[-1] + state
        entering.append(carry.clamp(-LIMIT, LIMIT))
    last_decay, last_state = local.totals[-1]
    final_state = last_decay * entering[-1] + last_state
    return add_carries(local, entering, decay.shape[1]), final_state
