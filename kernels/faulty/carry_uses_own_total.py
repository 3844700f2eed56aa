"""Planted bug: the state entering a chunk is made from that chunk's own total."""

from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import add_carries, scan_chunks


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state; wrong from the second chunk on."""
    local = scan_chunks(decay, drive)
    entering = [initial_state]
    # Right would be [:-1]: the totals of the chunks before.
    for own_decay, own_state in local.totals[1:]:
        entering.append(own_decay * entering[-1] + own_state)
    last_decay, last_state = local.totals[-1]
    final_state = last_decay * entering[-1] + last_state
    return add_carries(local, entering, decay.shape[1]), final_state
