"""Tokens between which exact data adds a drive and takes it back."""

import numpy as np

from scancheck.formats import IntArray
from scancheck.recipes.chains import Plan, draws
from scancheck.recipes.streams import integers

SHORTEST, LONGEST = 8, 16  # tokens between resets, or between both ends of a pair


def pair_tokens(plan: Plan) -> tuple[IntArray, IntArray]:
    """Tokens [B, n] where a drive comes and where it is taken back, all distinct.

    Each block of 16 tokens has one pair opened in its first half and closed in the
    second half of the next block; the first and last token are left free.
    """
    blocks = max(0, (plan.steps - 1 - LONGEST) // LONGEST)
    shape = (plan.batch, blocks)
    start = LONGEST * np.arange(blocks)
    opened = start + integers(draws(plan, "opened"), 1, SHORTEST - 1, shape)
    closed = start + integers(
        draws(plan, "closed"), LONGEST + SHORTEST, 2 * LONGEST - 1, shape
    )
    return opened, closed
