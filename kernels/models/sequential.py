"""One step after another: every output is the state that the next step starts from.

Contract: structure sequential; at most t additions and t multiplications on the path of
any term of S_t.
"""

from collections.abc import Callable

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.combine import Affine, Combine, take

Store = Callable[[Affine], Affine]


def states_in_order(
    arithmetic: Arithmetic,
    combine: Combine,
    steps: Affine,
    initial: Affine,
    *,
    store: Store | None = None,
    store_every: int = 1,
) -> Affine:
    """The states after each step, [T, lanes].

    The carried state goes through `store` before step `store_every` (counted from 0)
    and every multiple of it; the state returned at that place does not.
    """
    drives = np.empty_like(steps.drive)
    rests: Array | None = None
    state = initial
    for t in range(len(steps.drive)):
        if store is not None and t > 0 and t % store_every == 0:
            state = store(state)
        state = combine(arithmetic, state, take(steps, t))
        drives[t] = state.drive
        if state.drive_rest is not None:
            rests = np.empty_like(drives) if rests is None else rests
            rests[t] = state.drive_rest
    return Affine(drive=drives, drive_rest=rests)
