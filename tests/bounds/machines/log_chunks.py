"""Chunks in log space on the emulated machines: sums, differences, exponentials."""

from typing import Any

import numpy as np
from machines.emulator import Machine
from numpy.typing import NDArray

Array = NDArray[Any]


def log_chunks(
    m: Machine,
    log: Array,
    x: Array,
    s: Array,
    *,
    chunk: int,
    tree: bool = False,
    upwards: bool = True,
) -> Array:
    """The states [T, lanes] from log gates and writes; `upwards`: order of the sum."""
    out = []
    for start in range(0, len(log), chunk):
        gates, writes = log[start : start + chunk], x[start : start + chunk]
        sums = running_sums(m, gates, tree=tree)
        for t in range(len(gates)):
            gaps = m.add(sums[t], -sums[: t + 1])
            terms = list(m.mul(m.exp(gaps), writes[: t + 1]))
            terms.append(m.mul(m.exp(sums[t]), s))
            if not upwards:
                terms.reverse()
            total = terms[0]
            for term in terms[1:]:
                total = m.add(total, term)
            out.append(total)
        s = out[-1]
    return np.array(out)


def running_sums(m: Machine, x: Array, *, tree: bool) -> Array:
    """Inclusive sums, one after another or by doubling."""
    if tree:
        reach = 1
        while reach < len(x):
            x = np.concatenate((x[:reach], m.add(x[reach:], x[:-reach])))
            reach *= 2
        return x
    sums = [x[0]]
    for row in x[1:]:
        sums.append(m.add(sums[-1], row))
    return np.array(sums)


def gradients(
    m: Machine,
    log: Array,
    x: Array,
    s: Array,
    bars: tuple[Array, Array],
    *,
    chunk: int,
    tree: bool = False,
) -> dict[str, Array]:
    """The explicit adjoint, itself in log space on reversed time."""
    states = log_chunks(m, log, x, s, chunk=chunk, tree=tree)
    shifted = np.concatenate((0 * log[:1], log[:0:-1]))
    adjoint = log_chunks(m, shifted, bars[0][::-1], bars[1], chunk=chunk, tree=tree)
    adjoint = adjoint[::-1]
    before = np.concatenate((s[None], states[:-1]))
    decay = m.exp(log)
    return {
        "g": m.mul(decay, m.mul(adjoint, before)),
        "b": adjoint,
        "initial_state": m.mul(decay[0], adjoint[0]),
    }
