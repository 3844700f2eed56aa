"""Sums in ascending order, one rounded addition after another."""

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array


def ascending_sum(arithmetic: Arithmetic, x: Array, axis: int) -> Array:
    """The sum over one axis, from its first term upwards; zeros when it is empty."""
    if arithmetic.native and x.shape[axis]:
        # Running sums are rounded one addition after another too.
        sums: Array = np.add.accumulate(x, axis)
        last: Array = sums.take(-1, axis)
        return last
    terms = np.moveaxis(x, axis, 0)
    if len(terms) == 0:
        return np.zeros(terms.shape[1:], x.dtype)
    total: Array = terms[0].copy()
    for term in terms[1:]:
        total = arithmetic.add(total, term)
    return total


def sum_over_tokens(arithmetic: Arithmetic, x: Array) -> Array:
    """[T, B, ...] summed over time within each batch row, then over the rows."""
    return ascending_sum(arithmetic, ascending_sum(arithmetic, x, 0), 0)
