"""Running combinations along the first axis, in order or by Hillis-Steele.

in order   y_0 = x_0,  y_t = y_{t-1} o x_t
tree       in ceil(log2 n) rounds of reach r = 1, 2, 4, ...: y_t <- y_{t-r} o y_t for
           all t >= r at once, from one buffer into another

with o rounding as its own operations do, and the earlier operand on the left.
"""

from collections.abc import Callable

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array

Items = tuple[Array, ...]
Join = Callable[[Items, Items], Items]


def running(join: Join, items: Items, order: str) -> Items:
    """Each item joined with all before it; `order` is "sequential" or "tree"."""
    return (_by_doubling if order == "tree" else _in_order)(join, items)


def running_sums(arithmetic: Arithmetic, x: Array, order: str) -> Array:
    """The sums x_0 + ... + x_t along the first axis, every addition rounded."""
    if order == "sequential" and arithmetic.native:
        # NumPy adds one after another here: a prefix cannot be had otherwise.
        sums: Array = np.add.accumulate(x, axis=0)
        return sums
    (total,) = running(lambda y, z: (arithmetic.add(y[0], z[0]),), (x,), order)
    return total


def running_products(arithmetic: Arithmetic, x: Array, order: str) -> Array:
    """The products x_0 ... x_t along the first axis, every product rounded."""
    (products,) = running(lambda y, z: (arithmetic.mul(y[0], z[0]),), (x,), order)
    return products


def _in_order(join: Join, items: Items) -> Items:
    results = tuple(x.copy() for x in items)
    for t in range(1, len(items[0])):
        joined = join(tuple(y[t - 1] for y in results), tuple(x[t] for x in items))
        for y, new in zip(results, joined, strict=True):
            y[t] = new
    return results


def _by_doubling(join: Join, items: Items) -> Items:
    reach = 1
    while reach < len(items[0]):
        earlier = tuple(x[:-reach] for x in items)
        grown = join(earlier, tuple(x[reach:] for x in items))
        items = tuple(
            np.concatenate((x[:reach], new))
            for x, new in zip(items, grown, strict=True)
        )
        reach *= 2
    return items
