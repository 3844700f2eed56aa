"""Every log form on the emulated machines, written from its definition."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from machines.emulator import WIDE, Machine
from machines.log_chunks import running_sums
from numpy.typing import NDArray

from scancheck.formats import Format

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A scan in log space: form, steps per chunk, order of its running sums."""

    form: str
    chunk: int
    tree: bool = False
    upwards: bool = True  # order of the sum over the steps of a chunk
    keep: Format | None = None  # what the carried state is rounded into


def states(m: Machine, p: Program, log: Array, w: Array, x: Array, s: Array) -> Array:
    """The states [T, lanes] from log gates (decays for ratio), writes and start."""
    if p.form == "full":
        return _full(m, p, log, x, s)
    out: list[Array] = []
    for start in range(0, len(x), p.chunk):
        here = slice(start, start + p.chunk)
        out += _CHUNKS[p.form](m, p, w[here] if p.form == "ratio" else log[here],
                               x[here], s)  # fmt: skip
        s = out[-1] if p.keep is None else m.stored(p.keep, out[-1])
    return np.array(out)


def gradients(
    m: Machine, p: Program, log: Array, w: Array, x: Array, s: Array, bars: Any
) -> dict[str, Array]:
    """The explicit adjoint, in the same form on reversed time; wbar is that of w."""
    forward = states(m, p, log, w, x, s)
    late_log = np.concatenate((np.zeros_like(log[:1]), log[:0:-1]))
    late_w = np.concatenate((np.ones_like(w[:1]), w[:0:-1]))
    adjoint = states(m, p, late_log, late_w, bars[0][::-1], bars[1])[::-1]
    before = np.concatenate((s[None], forward[:-1]))
    wbar = m.mul(adjoint, before)
    return {
        "h": forward,
        "w": wbar,
        "g": m.mul(w, wbar),
        "b": adjoint,
        "initial_state": m.mul(w[0], adjoint[0]),
    }


def reverse_mode(
    m: Machine,
    p: Program,
    log: Array,
    x: Array,
    s: Array,
    bars: Any,
    *,
    split: bool = False,
) -> dict[str, Array]:
    """Reverse mode through the form `full`, as automatic differentiation goes.

    `split`: real numbers, which are summed once for each sign.
    """
    sums, (sign, run) = _full_sums(m, p, log, x, s)
    forward = sign * m.exp(m.add(sums, run))
    ybar = bars[0].copy()
    ybar[-1] = m.add(ybar[-1], bars[1])
    read = m.mul(forward, ybar)
    q = m.add(m.log(np.abs(read)), -run)[::-1]
    # Logarithms carry the signs of what they stand for.
    signs = (np.sign(read) * sign)[::-1]
    zero = np.zeros_like(s)[None]
    items = np.concatenate((s[None], x))
    # The items' own logarithms, k_0 .. k_T.
    own = m.add(m.log(np.abs(items)), -np.concatenate((zero, sums)))
    own[0] = m.log(np.abs(s))
    kbar = np.zeros_like(items)
    for part in (1.0, -1.0) if split else (None,):
        here, logs = signs, q
        if part is not None:
            here, logs = np.ones_like(q), np.where(signs == part, q, -np.inf)
        rows = _running_log_sums(m, list(zip(here, logs, strict=True)), tree=p.tree)
        late, total = (np.array(column)[::-1] for column in zip(*rows, strict=True))
        late, total = (np.concatenate((v[:1], v)) for v in (late, total))
        found = late * np.sign(items) * m.exp(m.add(total, own))
        kbar = m.add(kbar, found if part is None else part * found)
    xbar = m.rounded(m.operand(kbar) / m.operand(items))
    gates = running_sums(m, m.add(read, -kbar[1:])[::-1], tree=p.tree)[::-1]
    return {"h": forward, "g": gates, "b": xbar[1:], "initial_state": xbar[0]}


def added(m: Machine, terms: list[Array], *, upwards: bool) -> Array:
    """The sum of terms one after another, from either end."""
    terms = terms if upwards else terms[::-1]
    total = terms[0]
    for term in terms[1:]:
        total = m.add(total, term)
    return total


def _masked(m: Machine, p: Program, log: Array, x: Array, s: Array) -> list[Array]:
    """Every exponent is a running sum that starts after j."""
    columns = []
    for j in range(len(log)):
        column = np.zeros_like(log)
        if j + 1 < len(log):
            column[j + 1 :] = running_sums(m, log[j + 1 :], tree=p.tree)
        columns.append(column)
    whole = running_sums(m, log, tree=p.tree)
    out = []
    for t in range(len(log)):
        terms = [m.mul(m.exp(columns[j][t]), x[j]) for j in range(t + 1)]
        terms.append(m.mul(m.exp(whole[t]), s))
        out.append(added(m, terms, upwards=p.upwards))
    return out


def _factored(m: Machine, p: Program, log: Array, x: Array, s: Array) -> list[Array]:
    """exp(c_t) S_in + exp(c_t) (sum of exp(-c_j) x_j)."""
    sums = running_sums(m, log, tree=p.tree)
    inner = running_sums(m, m.mul(m.exp(-sums), x), tree=p.tree)
    outer = m.exp(sums)
    return list(m.add(m.mul(outer, s), m.mul(outer, inner)))


def _ratio(m: Machine, p: Program, w: Array, x: Array, s: Array) -> list[Array]:
    """p_t (S_in + sum of x_j / p_j)."""
    products = running_products(m, w, tree=p.tree)
    quotients = m.rounded(m.operand(x) / m.operand(products))
    inner = running_sums(m, quotients, tree=p.tree)
    return list(m.mul(products, m.add(inner, s)))


def _renormalised(m: Machine, p: Program, log: Array, x: Array, s: Array) -> list[Any]:
    """The factored form on pairs (V, N) that stand for V 2**N."""
    sums = running_sums(m, log, tree=p.tree)
    power, outer, inner = split_exponent(m, sums)
    terms = scaled(m.mul(inner, x), -power)
    totals = [(v, n) for v, n in zip(*terms, strict=True)]
    reach = 1
    while reach < len(totals) if p.tree else False:
        grown = [plus(m, a, b) for a, b in zip(totals, totals[reach:], strict=False)]
        totals = totals[:reach] + grown
        reach *= 2
    if not p.tree:
        for t in range(1, len(totals)):
            totals[t] = plus(m, totals[t - 1], totals[t])
    out = []
    for t, total in enumerate(totals):
        v, n = plus(m, total, scaled(s, 0.0 * s))
        out.append(power_of_two(m, m.mul(outer[t], v), n + power[t]))
    return out


def split_exponent(m: Machine, sums: Array) -> tuple[Array, Array, Array]:
    """n, exp(c - n ln 2) and its inverse, for sums c and n the nearest integers."""
    power = np.rint(np.asarray(sums / np.log(WIDE(2)), dtype=float))
    power = np.where(np.isfinite(power), power, 0.0)
    rest = np.asarray(sums, WIDE) - power * np.log(WIDE(2))
    outer, inner = (m.function(np.exp, q, m.exp_error) for q in (rest, -rest))
    return power, outer, inner


def scaled(x: Array, power: Array) -> tuple[Array, Array]:
    """Significand and exponent of x 2**power."""
    v, n = np.frexp(x)
    return v, n + power


def power_of_two(m: Machine, x: Array, power: Array) -> Array:
    """x 2**power, rounded once."""
    moved = np.ldexp(x, np.clip(power, -9000, 9000).astype(int))
    return moved if m.exact else m.rounded(moved)


def plus(m: Machine, left: Any, right: Any) -> tuple[Array, Array]:
    """The sum of two pairs, at the larger exponent."""
    (x, i), (y, j) = left, right
    top = np.where(x == 0, j, np.where(y == 0, i, np.maximum(i, j)))
    return scaled(m.add(power_of_two(m, x, i - top), power_of_two(m, y, j - top)), top)


def _full(m: Machine, p: Program, log: Array, x: Array, s: Array) -> Array:
    """Signed running log-sums of log|x_j| - c_j over the whole length."""
    sums, (sign, run) = _full_sums(m, p, log, x, s)
    states: Array = sign * m.exp(m.add(sums, run))
    return states


def _full_sums(
    m: Machine, p: Program, log: Array, x: Array, s: Array
) -> tuple[Array, tuple[Array, Array]]:
    """c_1 .. c_T, and sign and logarithm of the running sums at 1 .. T."""
    sums = running_sums(m, log, tree=p.tree)
    first = m.log(np.abs(s))[None]
    logs = np.concatenate((first, m.add(m.log(np.abs(x)), -sums)))
    items = list(zip(np.sign(np.concatenate((s[None], x))), logs, strict=True))
    items = _running_log_sums(m, items, tree=p.tree)[1:]
    sign, run = (np.array(column) for column in zip(*items, strict=True))
    return sums, (sign, run)


def _running_log_sums(m: Machine, items: list[Any], *, tree: bool) -> list[Any]:
    reach = 1
    while reach < len(items) if tree else False:
        grown = [_log_sum(m, a, b) for a, b in zip(items, items[reach:], strict=False)]
        items = items[:reach] + grown
        reach *= 2
    if not tree:
        for t in range(1, len(items)):
            items[t] = _log_sum(m, items[t - 1], items[t])
    return items


def _log_sum(m: Machine, left: Any, right: Any) -> tuple[Array, Array]:
    """Sign and logarithm of a sum, the larger operand factored out."""
    first = left[1] >= right[1]
    big, small = np.where(first, left[1], right[1]), np.where(first, right[1], left[1])
    # Every exp knows that exp(d) <= 1 for d <= 0.
    r = np.minimum(m.exp(m.add(small, -big)), 1.0)
    log = m.add(big, m.log1p(np.where(left[0] == right[0], r, -r)))
    log = np.where(np.isinf(big), big, log)
    return np.where(first, left[0], right[0]), log


def running_products(m: Machine, x: Array, *, tree: bool) -> Array:
    """Inclusive products, one after another or by doubling."""
    if tree:
        reach = 1
        while reach < len(x):
            x = np.concatenate((x[:reach], m.mul(x[reach:], x[:-reach])))
            reach *= 2
        return x
    out = [x[0]]
    for row in x[1:]:
        out.append(m.mul(out[-1], row))
    return np.array(out)


_CHUNKS: dict[str, Callable[..., list[Array]]] = {
    "segsum": _masked,
    "factored": _factored,
    "ratio": _ratio,
    "renorm": _renormalised,
}
