"""Planted bug: the carry is the last local state of the chunk before, nothing older."""

from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import add_carries, scan_chunks


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h, wrong from the third chunk on, or the second where an initial state is given.

    The final state is decayed from the entering one, as h is.
    """
    local = scan_chunks(decay, drive)
    states = [state for _, state in local.totals]
    entering = [initial_state, *states[:-1]]
    last_decay, last_state = local.totals[-1]
    final_state = last_decay * entering[-1] + last_state
    return add_carries(local, entering, decay.shape[1]), final_state
