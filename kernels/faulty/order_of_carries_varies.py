"""Planted bug: carries are combined in another order in every second call.

Who comes first is imitated by a count of calls: both orders are right to within their
roundings, but not to the bit.
"""

from itertools import count

from torch import Tensor

from scancheck.kernels.faulty.chunked_torch import (
    add_carries,
    chain_carries,
    scan_chunks,
)

CALLS = count(1)


def scan(decay: Tensor, drive: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """h and the final state, right, in bits that depend on the call."""
    local = scan_chunks(decay, drive)
    if next(CALLS) % 2:
        *entering, final_state = chain_carries(local.totals, initial_state)
    else:
        *entering, final_state = state_last(local.totals, initial_state)
    return add_carries(local, entering, decay.shape[1]), final_state


def state_last(
    totals: list[tuple[Tensor, Tensor]], initial_state: Tensor
) -> list[Tensor]:
    """The carries with totals combined first, and the initial state joined last."""
    carries = [initial_state]
    product, total = totals[0]
    for decay, state in totals[1:]:
        carries.append(product * initial_state + total)
        product, total = decay * product, decay * total + state
    return [*carries, product * initial_state + total]
