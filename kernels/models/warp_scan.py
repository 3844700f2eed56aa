"""A scan by warps of 32 lanes, then across the warps, then down into them again.

1. each warp scans its 32 elements by Hillis-Steele (shuffles);
2. the warps' totals are scanned by Hillis-Steele;
3. every element of a later warp is combined with the scanned total of the warps before
   it: P(warps before) on the left, the element on the right.

Contract: structure tree; an element passes at most 5 additions in its warp,
ceil(log2 warps) across them and one on the way down.
"""

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.combine import (
    Affine,
    Combine,
    each,
    join,
    padded,
    take,
)
from scancheck.kernels.models.hillis_steele import hillis_steele

LANES = 32


def warp_scan(arithmetic: Arithmetic, combine: Combine, steps: Affine) -> Affine:
    """The combination of each step with all before it, [T, ...]."""
    length = len(steps.drive)
    full = padded(steps, -length % LANES)
    inside = hillis_steele(arithmetic, combine, each(full, _by_lane))
    totals = hillis_steele(arithmetic, combine, take(inside, -1))
    before = take(totals, slice(None, -1))
    later = take(inside, (slice(None), slice(1, None)))
    first = take(inside, (slice(None), slice(None, 1)))
    joined = combine(arithmetic, before, later)
    return take(
        join(each(first, _by_element), each(joined, _by_element)), slice(length)
    )


def _by_lane(x: Array) -> Array:
    """[warps * 32, ...] -> [32, warps, ...]."""
    return np.swapaxes(x.reshape(len(x) // LANES, LANES, *x.shape[1:]), 0, 1)


def _by_element(x: Array) -> Array:
    """[32, warps, ...] -> [warps * 32, ...]."""
    by_warp = np.swapaxes(x, 0, 1)
    return by_warp.reshape(by_warp.shape[0] * LANES, *by_warp.shape[2:])
