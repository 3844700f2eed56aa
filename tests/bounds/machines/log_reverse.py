"""Reverse mode through the log forms that work in chunks, on the emulated machines."""

from typing import Any

import numpy as np
from machines.emulator import Machine
from machines.log_chunks import running_sums
from machines.log_forms import (
    Program,
    added,
    plus,
    power_of_two,
    running_products,
    scaled,
    split_exponent,
)
from numpy.typing import NDArray

Array = NDArray[Any]


def reverse_chunks(
    m: Machine, p: Program, log: Array, w: Array, bars: tuple[Array, Array]
) -> tuple[Array, Array]:
    """G [T, lanes] and the initial state's cotangent, with the forward's decays."""
    carried = bars[1]
    out = np.zeros_like(bars[0])
    for start in reversed(range(0, len(log), p.chunk)):
        here = slice(start, start + p.chunk)
        y = bars[0][here].copy()
        y[-1] = m.add(y[-1], carried)
        if p.form in ("diff", "segsum"):
            out[here], carried = _transposed(m, p, log[here], y)
        elif p.form == "renorm":
            out[here], carried = _renormalised(m, p, log[here], y)
        else:
            late = w[here] if p.form == "ratio" else log[here]
            out[here], carried = _prefixed(m, p, late, y)
        carried = carried if p.keep is None else m.stored(p.keep, carried)
    return out, carried


def _transposed(m: Machine, p: Program, log: Array, y: Array) -> tuple[Array, Array]:
    """Sums over t of the exponentials that the forward formed."""
    sums = running_sums(m, log, tree=p.tree)
    rows = []
    for j in range(len(log)):
        gaps = m.add(sums[j:], -sums[j])
        if p.form == "segsum":
            gaps = np.zeros_like(log[j:])
            if j + 1 < len(log):
                gaps[1:] = running_sums(m, log[j + 1 :], tree=p.tree)
        terms = list(m.mul(m.exp(gaps), y[j:]))
        rows.append(added(m, terms, upwards=p.upwards))
    whole = added(m, list(m.mul(m.exp(sums), y)), upwards=p.upwards)
    return np.array(rows), whole


def _from_the_end(m: Machine, p: Program, terms: Array) -> Array:
    return running_sums(m, terms[::-1], tree=p.tree)[::-1]


def _prefixed(m: Machine, p: Program, late: Array, y: Array) -> tuple[Array, Array]:
    """exp(-c_j) or 1 / p_j times the sum of exp(c_t) or p_t times y_t."""
    if p.form == "ratio":
        products = running_products(m, late, tree=p.tree)
        sums = _from_the_end(m, p, m.mul(products, y))
        return m.rounded(m.operand(sums) / m.operand(products)), sums[0]
    c = running_sums(m, late, tree=p.tree)
    sums = _from_the_end(m, p, m.mul(m.exp(c), y))
    return m.mul(m.exp(-c), sums), sums[0]


def _renormalised(m: Machine, p: Program, log: Array, y: Array) -> tuple[Array, Array]:
    """The factored form on pairs (V, N) that stand for V 2**N."""
    power, outer, inner = split_exponent(m, running_sums(m, log, tree=p.tree))
    terms = scaled(m.mul(outer, y), power)
    totals = list(zip(*(part[::-1] for part in terms), strict=True))
    for t in range(1, len(totals)):
        totals[t] = plus(m, totals[t - 1], totals[t])
    totals.reverse()
    out = [
        power_of_two(m, m.mul(f, v), n - k)
        for f, (v, n), k in zip(inner, totals, power, strict=True)
    ]
    return np.array(out), power_of_two(m, *totals[0])
