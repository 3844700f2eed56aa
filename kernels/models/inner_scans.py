"""The orders in which the steps of a block are combined.

sequential  one after another
tree        Hillis-Steele
warps       Hillis-Steele in warps of 32, then across them
"""

from collections.abc import Callable

from scancheck.kernels.models.arithmetic import Arithmetic
from scancheck.kernels.models.combine import (
    Affine,
    Combine,
    as_states,
    begun,
    join,
    take,
)
from scancheck.kernels.models.hillis_steele import hillis_steele
from scancheck.kernels.models.sequential import states_in_order
from scancheck.kernels.models.warp_scan import warp_scan

Prefixes = Callable[[Arithmetic, Combine, Affine], Affine]


def in_order(arithmetic: Arithmetic, combine: Combine, steps: Affine) -> Affine:
    """The combination of each step with all before it, [T, ...]."""
    prefixes = [take(steps, slice(0, 1))]
    for t in range(1, len(steps.drive)):
        step = take(steps, slice(t, t + 1))
        prefixes.append(combine(arithmetic, prefixes[-1], step))
    return join(*prefixes)


PREFIXES: dict[str, Prefixes] = {
    "sequential": in_order,
    "tree": hillis_steele,
    "warps": warp_scan,
}


def states_after(
    arithmetic: Arithmetic, combine: Combine, order: str, steps: Affine, initial: Affine
) -> Affine:
    """The state after each step, [T, ...]; the initial state joins the first step."""
    if order == "sequential":
        return states_in_order(arithmetic, combine, steps, initial)
    first = combine(arithmetic, initial, take(steps, 0))
    return as_states(PREFIXES[order](arithmetic, combine, begun(steps, first)))
