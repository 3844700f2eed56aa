"""All steps at once, in ceil(log2 T) rounds that double the reach of every element.

Contract: structure tree(hillis_steele); an element passes ceil(log2 t) additions, and
one more where the initial state joins the first step. Source: Hillis and Steele, "Data
parallel algorithms", CACM 29 (1986).
"""

from scancheck.kernels.models.arithmetic import Arithmetic
from scancheck.kernels.models.combine import Affine, Combine, join, take


def hillis_steele(arithmetic: Arithmetic, combine: Combine, steps: Affine) -> Affine:
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
