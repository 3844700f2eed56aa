"""An up sweep of totals, then a down sweep of the states that each block starts from.

The steps are filled up to n, a power of two, with identity steps. In place on n nodes:

    up     for r = 1, 2, .. n / 4: node[2 r k + 2 r - 1] <- node[2 r k + r - 1] o itself
    root   the state before step 1 is the initial state
    down   for r = n / 2, .. 2, 1: of a block that starts from state s, the left half
           starts from s, and the right half from s o (total of the left half)
    leaf   S_t = (state before t) o step t

with o the combination, earlier on the left; what starts a block is a state, so that the
down sweep and the leaves take one product and one addition each.

Contract: structure tree; at most 2 ceil(log2 t) + 1 additions on the path of any term,
and never more than t. Source: Blelloch, "Prefix sums and their applications",
CMU-CS-90-190 (1990), with the initial state in the place of the identity at the root.
"""

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.combine import (
    Affine,
    Combine,
    each,
    padded,
    take,
    value,
)


def blelloch(
    arithmetic: Arithmetic, combine: Combine, steps: Affine, initial: Affine
) -> Array:
    """The states after each step, shaped as `steps`: [T, lanes]."""
    length = len(steps.drive)
    levels = [padded(steps, (1 << (length - 1).bit_length()) - length)]
    while len(levels[-1].drive) > 1:
        halves = _left(levels[-1]), _right(levels[-1])
        levels.append(combine(arithmetic, *halves))
    before = each(initial, lambda x: x[None])
    for totals in levels[-2::-1]:
        after_left = combine(arithmetic, before, _left(totals))
        before = _alternating(before, after_left)
    return value(arithmetic, combine(arithmetic, before, levels[0]))[:length]


def _left(nodes: Affine) -> Affine:
    return take(nodes, slice(0, None, 2))


def _right(nodes: Affine) -> Affine:
    return take(nodes, slice(1, None, 2))


def _alternating(even: Affine, odd: Affine) -> Affine:
    """States of the left and the right halves, one after the other."""

    def merged(x: Array, y: Array) -> Array:
        return np.stack((x, y), axis=1).reshape(2 * len(x), *x.shape[1:])

    if odd.drive_rest is None:
        return Affine(drive=merged(even.drive, odd.drive))
    rest = np.zeros_like(even.drive) if even.drive_rest is None else even.drive_rest
    return Affine(
        drive=merged(even.drive, odd.drive), drive_rest=merged(rest, odd.drive_rest)
    )
