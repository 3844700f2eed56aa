"""Compensated programs on the emulated machines: errors of sums and products kept."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from machines.emulator import Machine
from numpy.typing import NDArray

from scancheck.formats import Format, round_array

Array = NDArray[Any]


def two_sum(m: Machine, x: Array, y: Array) -> tuple[Array, Array]:
    """Knuth's six rounded additions."""
    total = m.add(x, y)
    seen = m.add(total, -x)
    return total, m.add(m.add(x, -m.add(total, -seen)), m.add(y, -seen))


def two_product(m: Machine, x: Array, y: Array) -> tuple[Array, Array]:
    """The rounded product and its error, as an fma gives it."""
    product = m.mul(x, y)
    return product, m.fma(x, y, -product)


@dataclass(slots=True)
class Map:
    """S -> (a + ra) S + (b + rb); a state has no a."""

    b: Array
    rb: Array
    a: Array | None = None
    ra: Array | None = None


def combined(m: Machine, kind: str, left: Map, right: Map) -> Map:
    """`left`, then `right`; `kind` is "neumaier" (sums only) or "full"."""
    assert right.a is not None and right.ra is not None
    if kind == "full":
        product, lost = two_product(m, right.a, left.b)
        total, rest = two_sum(m, product, right.b)
        rest = m.add(lost, rest)
        rest = m.add(rest, m.mul(right.ra, left.b))
    else:
        product = m.mul(right.a, left.b)
        total, rest = two_sum(m, product, right.b)
    rest = m.add(m.add(rest, m.mul(right.a, left.rb)), right.rb)
    if left.a is None or left.ra is None:
        return Map(total, rest)
    if kind != "full":
        return Map(total, rest, m.mul(right.a, left.a), 0 * right.a)
    decay, lost = two_product(m, right.a, left.a)
    low = m.add(m.mul(right.a, left.ra), m.mul(right.ra, left.a))
    return Map(total, rest, decay, m.add(lost, low))


def compensated(
    m: Machine,
    kind: str,
    a: Array,
    b: Array,
    s: Array,
    *,
    tree: bool = False,
    keep: tuple[Format, int] | None = None,
) -> Array:
    """The states [T, lanes]; `keep` rounds the carried state every so many steps."""
    zero = np.zeros_like(s)
    steps = [Map(y, zero, x, zero) for x, y in zip(a, b, strict=True)]
    state = Map(s, zero)
    out = []
    if tree:
        steps[0] = combined(m, kind, state, steps[0])
        reach = 1
        while reach < len(steps):
            steps = steps[:reach] + [
                combined(m, kind, steps[i - reach], steps[i])
                for i in range(reach, len(steps))
            ]
            reach *= 2
        return np.array([m.add(x.b, x.rb) for x in steps])
    for t, step in enumerate(steps):
        if keep is not None and t % keep[1] == 0:
            state = Map(round_array(keep[0], m.add(state.b, state.rb)), zero)
        state = combined(m, kind, state, step)
        out.append(m.add(state.b, state.rb))
    return np.array(out)


def kahan(m: Machine, a: Array, b: Array, s: Array) -> Array:
    """Kahan's own form: y = b - c, n = p + y, c = (n - p) - y; c decays with a."""
    rest, out = np.zeros_like(s), []
    for x, y in zip(a, b, strict=True):
        product = m.mul(x, s)
        wanted = m.add(y, -m.mul(x, rest))
        s = m.add(product, wanted)
        rest = m.add(m.add(s, -product), -wanted)
        out.append(s)
    return np.array(out)
