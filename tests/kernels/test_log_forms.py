"""The log forms against loops over single steps, written from their definitions."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scancheck.formats import (
    BF16,
    FP16,
    FP32,
    FloatArray,
    Format,
    round_array,
    round_exact,
)
from scancheck.kernels.models.algorithm import (
    LOG_VARIANTS,
    Algorithm,
    exponential_steps,
    scan,
    states_again,
)
from scancheck.kernels.models.arithmetic import Arithmetic

seeds = st.integers(0, 2**32 - 1)
lengths = st.integers(0, 20)
chunks = st.integers(1, 9)
orders = pytest.mark.parametrize("order", ["sequential", "tree"])
formats = pytest.mark.parametrize("fmt", [FP16, BF16, FP32], ids=lambda fmt: fmt.name)


T = TypeVar("T")


class Exactly:
    """Operations of one format on Fractions: each exact, then rounded once."""

    def __init__(self, fmt: Format) -> None:
        self.fmt = fmt
        self.digits = mpmath.MPContext()
        self.digits.prec = 200

    def rounded(self, x: Fraction) -> Fraction:
        return Fraction(round_exact(self.fmt, x))

    def add(self, x: Fraction, y: Fraction) -> Fraction:
        return self.rounded(x + y)

    def mul(self, x: Fraction, y: Fraction) -> Fraction:
        return self.rounded(x * y)

    def of(self, name: str, x: Fraction) -> Fraction:
        """exp, log or log1p, rounded once from 200 bits."""
        wide = self.digits.mpf(x.numerator) / x.denominator
        value = getattr(self.digits, name)(wide)
        return self.rounded(Fraction(*_as_ratio(value)))

    def exp(self, x: Fraction) -> Fraction:
        return self.of("exp", x)


def _as_ratio(value: mpmath.mpf) -> tuple[int, int]:
    sign, mantissa, exponent, _ = value._mpf_
    number = Fraction(int(mantissa)) * Fraction(2) ** exponent
    number = -number if sign else number
    return number.numerator, number.denominator


def prefixes(join: Callable[[T, T], T], items: list[T], order: str) -> list[T]:
    """Each item joined with all before it: in order, or by doubling."""
    if order == "sequential":
        results = items[:1]
        for item in items[1:]:
            results.append(join(results[-1], item))
        return results
    reach = 1
    while reach < len(items):
        items = [
            item if t < reach else join(items[t - reach], item)
            for t, item in enumerate(items)
        ]
        reach *= 2
    return items


def scalar_states(
    variant: str,
    fmt: Format,
    order: str,
    gates: list[Fraction],
    drives: list[Fraction],
    initial: Fraction,
    chunk: int,
) -> list[Fraction]:
    """The states of one lane, one operation at a time."""
    forms = {
        "log_diff": scalar_difference,
        "log_segsum": scalar_segment_sum,
        "log_factored": scalar_factored,
        "log_ratio": scalar_ratio,
        "log_renorm": scalar_renormalised,
    }
    op, states, carried = Exactly(fmt), [], initial
    if variant == "log_full":
        return scalar_log_sum(op, gates, drives, initial, order) if drives else []
    for start in range(0, len(drives), chunk):
        part = slice(start, start + chunk)
        states += forms[variant](op, gates[part], drives[part], carried, order)
        carried = states[-1]
    return states


def ascending(op: Exactly, terms: list[Fraction]) -> Fraction:
    """The sum from the first term upwards."""
    total = terms[0]
    for term in terms[1:]:
        total = op.add(total, term)
    return total


def scalar_difference(
    op: Exactly, gates: list[Fraction], b: list[Fraction], s: Fraction, order: str
) -> list[Fraction]:
    """log=diff."""
    c = prefixes(op.add, gates, order)
    states = []
    for t in range(len(b)):
        terms = [op.mul(op.exp(op.add(c[t], -c[j])), b[j]) for j in range(t + 1)]
        states.append(op.add(op.mul(op.exp(c[t]), s), ascending(op, terms)))
    return states


def scalar_segment_sum(
    op: Exactly, gates: list[Fraction], b: list[Fraction], s: Fraction, order: str
) -> list[Fraction]:
    """log=segsum: columns of a masked matrix, summed as whole columns with zeros."""
    columns = []
    for j in range(-1, len(b)):
        masked = [g if i > j else Fraction(0) for i, g in enumerate(gates)]
        columns.append(prefixes(op.add, masked, order))
    states = []
    for t in range(len(b)):
        terms = [op.mul(op.exp(columns[j + 1][t]), b[j]) for j in range(t + 1)]
        inherited = op.mul(op.exp(columns[0][t]), s)
        states.append(op.add(inherited, ascending(op, terms)))
    return states


def scalar_factored(
    op: Exactly, gates: list[Fraction], b: list[Fraction], s: Fraction, order: str
) -> list[Fraction]:
    """log=factored."""
    c = prefixes(op.add, gates, order)
    v = [op.mul(op.exp(-x), y) for x, y in zip(c, b, strict=True)]
    totals = prefixes(op.add, v, order)
    return [
        op.add(op.mul(op.exp(x), s), op.mul(op.exp(x), total))
        for x, total in zip(c, totals, strict=True)
    ]


def scalar_ratio(
    op: Exactly, gates: list[Fraction], b: list[Fraction], s: Fraction, order: str
) -> list[Fraction]:
    """log=ratio."""
    p = prefixes(op.mul, [op.exp(g) for g in gates], order)
    q = [op.rounded(y / x) for x, y in zip(p, b, strict=True)]
    totals = prefixes(op.add, q, order)
    return [op.mul(x, op.add(total, s)) for x, total in zip(p, totals, strict=True)]


def scalar_renormalised(
    op: Exactly, gates: list[Fraction], b: list[Fraction], s: Fraction, order: str
) -> list[Fraction]:
    """log=renorm, in which a scaled number is a Fraction of any size.

    A sum is formed beside the power of two next above its larger operand.
    """

    def add(x: Fraction, y: Fraction) -> Fraction:
        if x == 0 or y == 0:
            return x + y
        top = Fraction(2) ** exponent_of(max(abs(x), abs(y)))
        return op.add(op.rounded(x / top), op.rounded(y / top)) * top

    def factor(x: Fraction, power: int) -> Fraction:
        rest = op.digits.mpf(x.numerator) / x.denominator - power * op.digits.log(2)
        return op.rounded(Fraction(*_as_ratio(op.digits.exp(rest))))

    c = prefixes(op.add, gates, order)
    powers = [round(math.log2(math.e) * float(x)) for x in c]
    scales = [Fraction(2) ** n for n in powers]
    v = [
        op.mul(factor(-x, -n), y) / scale
        for x, y, n, scale in zip(c, b, powers, scales, strict=True)
    ]
    states = []
    for x, n, scale, total in zip(
        c, powers, scales, prefixes(add, v, order), strict=True
    ):
        whole = add(total, s)
        top = Fraction(2) ** exponent_of(abs(whole))
        product = op.mul(factor(x, n), whole / top)
        states.append(op.rounded(product * top * scale))
    return states


def exponent_of(size: Fraction) -> int:
    """The e with 2**(e - 1) <= size < 2**e; 0 for zero."""
    e = 0
    while size >= Fraction(2) ** e:
        e += 1
    while 0 < size < Fraction(2) ** (e - 1):
        e -= 1
    return e


Signed = tuple[int, Fraction | None]  # sign and logarithm; None for that of zero


def scalar_log_sum(
    op: Exactly, gates: list[Fraction], b: list[Fraction], s: Fraction, order: str
) -> list[Fraction]:
    """log=full."""
    c = prefixes(op.add, gates, order)

    def signed(x: Fraction, shift: Fraction) -> Signed:
        if x == 0:
            return 0, None
        return (1 if x > 0 else -1), op.add(op.of("log", abs(x)), -shift)

    def join(left: Signed, right: Signed) -> Signed:
        if right[1] is None:
            return left
        if left[1] is None:
            return right
        large, small = (left, right) if left[1] >= right[1] else (right, left)
        assert large[1] is not None
        assert small[1] is not None
        ratio = op.exp(op.add(small[1], -large[1]))
        if large[0] != small[0]:
            ratio = -ratio
        if ratio == -1:
            return large[0], None
        return large[0], op.add(large[1], op.of("log1p", ratio))

    items = [signed(s, Fraction(0))]
    items += [signed(x, shift) for x, shift in zip(b, c, strict=True)]
    sums = prefixes(join, items, order)[1:]
    return [
        Fraction(0) if log is None else sign * op.exp(op.add(x, log))
        for x, (sign, log) in zip(c, sums, strict=True)
    ]


def model_states(
    variant: str,
    fmt: Format,
    order: str,
    gates: FloatArray,
    drives: FloatArray,
    initial: FloatArray,
    chunk: int = 5,
) -> FloatArray:
    """The model's states in float64."""
    arithmetic = Arithmetic(fmt)
    name = "chunk"
    if variant == "log_full":
        name = "sequential" if order == "sequential" else "hillis_steele"
    algorithm = Algorithm(name=name, variant=variant, chunk=chunk, inner=order)
    lift = arithmetic.lift
    with np.errstate(all="ignore"):
        steps = exponential_steps(arithmetic, algorithm, lift(gates), lift(drives))
        scanned = scan(arithmetic, algorithm, steps, lift(initial))
        again = states_again(arithmetic, algorithm, steps, scanned.edges)
    assert np.array_equal(again, scanned.states, equal_nan=True)
    assert scanned.states.shape == drives.shape
    return scanned.states.astype(np.float64)


def drawn(
    fmt: Format, seed: int, length: int, lanes: int = 2
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Log decays, drives of both signs with zeros among them, and initial states."""
    rng = np.random.default_rng(seed)
    g = rng.exponential(0.2, (length, lanes)) * rng.choice(
        [-1, -1, -1, 1, 0], (length, lanes)
    )
    b = rng.normal(size=(length, lanes)) * rng.choice([1, 1, 1, 0], (length, lanes))
    s0 = rng.normal(size=lanes) * rng.choice([1, 1, 0], lanes)
    return round_array(fmt, g), round_array(fmt, b), round_array(fmt, s0)


@pytest.mark.parametrize("variant", LOG_VARIANTS)
@orders
@formats
@settings(max_examples=25)
@given(seed=seeds, length=lengths, chunk=chunks)
def test_bitwise_as_scalar_loops(
    variant: str, order: str, fmt: Format, seed: int, length: int, chunk: int
) -> None:
    """Every form rounds where its definition rounds and nowhere else, and again so
    when the states are recomputed from those at chunk edges.
    """
    g, b, s0 = drawn(fmt, seed, length)
    states = model_states(variant, fmt, order, g, b, s0, chunk)
    for lane in range(b.shape[1]):
        expected = scalar_states(
            variant,
            fmt,
            order,
            [Fraction(x) for x in g[:, lane]],
            [Fraction(x) for x in b[:, lane]],
            Fraction(s0[lane]),
            chunk,
        )
        assert [Fraction(x) for x in states[:, lane]] == expected
