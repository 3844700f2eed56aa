"""All steps at once, in ceil(log2 T) rounds that double the reach of every element.

Contract: structure tree(hillis_steele); an element passes ceil(log2 t) additions, and
one more where the initial state joins the first step. Source: Hillis and Steele, "Data
parallel algorithms", CACM 29 (1986).
"""

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.combine import Affine, Combine, join, take, value


def hillis_steele(
    arithmetic: Arithmetic, combine: Combine, steps: Affine, initial: Affine
) -> Array:
    """The states after each step, shaped as `steps`: [T, lanes]."""
    if len(steps.drive) == 0:
        return steps.drive.copy()
    first = combine(arithmetic, initial, take(steps, 0))
    return value(arithmetic, prefixes(arithmetic, combine, _begun(steps, first)))


def prefixes(arithmetic: Arithmetic, combine: Combine, steps: Affine) -> Affine:
    """The combination of each step with all before it, [T, ...].

    Each round reads one buffer and writes another: written in place, a round would
    read elements that already reach further.
    """
    reach = 1
    while reach < len(steps.drive):
        left = take(steps, slice(None, -reach))
        right = take(steps, slice(reach, None))
        grown = combine(arithmetic, left, right)
        steps = join(take(steps, slice(None, reach)), grown)
        reach *= 2
    return steps


def _begun(steps: Affine, first: Affine) -> Affine:
    """The steps with the first replaced by a state.

    Its decay stays in place and is never used: an element that reaches the first step
    is complete and only ever stands on the left.
    """
    drive = steps.drive.copy()
    drive[0] = first.drive
    drive_rest = None
    if first.drive_rest is not None:
        drive_rest = steps.drive * 0.0
        drive_rest[0] = first.drive_rest
    return Affine(
        drive=drive,
        decay=steps.decay,
        decay_rest=steps.decay_rest,
        drive_rest=drive_rest,
    )
