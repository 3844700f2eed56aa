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
    FP64,
    FloatArray,
    Format,
    round_array,
    round_exact,
)
from scancheck.kernels.models.algorithm import (
    CHUNK_FORMS,
    LOG_VARIANTS,
    Algorithm,
    adjoint_scan,
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


def integers(seed: int, *shape: int) -> FloatArray:
    """Small integers of both signs."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float64)


@pytest.mark.parametrize("variant", ["log_diff", "log_segsum"])
@orders
def test_resets_are_exact(variant: str, order: str) -> None:
    """With log decays 0 and -1024 and integers, exponents and states are exact."""
    rng = np.random.default_rng(8)
    g = rng.choice([0.0, -1024.0], (40, 8), p=[0.7, 0.3])
    b, s = integers(9, 40, 8), integers(10, 8)
    exact = np.empty_like(b)
    for t in range(40):
        exact[t] = np.exp(g[t]) * (exact[t - 1] if t else s) + b[t]
    for length in (0, 1, 2, 5, 7, 8, 9, 31, 33, 40):
        for chunk in (1, 2, 3, 4, 7, 9, 64):
            states = model_states(
                variant, FP32, order, g[:length], b[:length], s, chunk
            )
            assert np.array_equal(states, exact[:length])


@pytest.mark.parametrize("variant", list(CHUNK_FORMS))
@orders
@formats
def test_sums_are_exact(variant: str, order: str, fmt: Format) -> None:
    """Without decay every chunked form adds integers exactly, in every format."""
    b, s = integers(11, 33, 6), integers(12, 6)
    exact = s + np.cumsum(b, axis=0)
    for chunk in (1, 3, 8, 9, 64):
        states = model_states(variant, fmt, order, np.zeros_like(b), b, s, chunk)
        assert np.array_equal(states, exact)


@orders
def test_one_impulse_through_the_whole_length_is_exact(order: str) -> None:
    """log=full holds a single 1, whose logarithm is 0, where nothing decays."""
    b, zeros = np.zeros((33, 33)), np.zeros((33, 33))
    np.fill_diagonal(b, [1.0, -1.0, 1.0] * 11)
    states = model_states("log_full", FP32, order, zeros, b, np.zeros(33))
    assert np.array_equal(states, np.cumsum(b, axis=0))


@orders
def test_masked_sums_forget_at_minus_infinity(order: str) -> None:
    """log=segsum alone among the log forms takes a gate of -infinity as a reset."""
    g, b = np.zeros((9, 1)), np.ones((9, 1))
    g[4] = -np.inf
    states = model_states("log_segsum", FP32, order, g, b, np.ones(1), chunk=7)
    assert states[:, 0].tolist() == [2.0, 3.0, 4.0, 5.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    for variant in set(LOG_VARIANTS) - {"log_segsum"}:
        states = model_states(variant, FP32, order, g, b, np.ones(1), chunk=7)
        assert np.isfinite(states[:4]).all()
        assert np.isnan(states[4:7]).all()


@orders
def test_which_forms_hold_a_strong_decay(order: str) -> None:
    """Over exp(-256) in a chunk of 64 the factored form and the ratio break down; all
    others stay within the errors of exponents as large as 256, and of 16 for full.
    """
    g = np.full((64, 2), -4.0)
    b, s = integers(13, 64, 2) + 0.5, integers(14, 2)
    exact, state = np.empty_like(b), s
    for t in range(64):
        state = math.exp(-4.0) * state + b[t]
        exact[t] = state
    for variant in LOG_VARIANTS:
        states = model_states(variant, FP32, order, g, b, s, chunk=64)
        if variant in ("log_factored", "log_ratio"):
            assert not np.isfinite(states[-1]).any()
        else:
            assert np.abs(states - exact).max() <= 64 * 256 * 2**-24 * 4


@pytest.mark.parametrize("variant", LOG_VARIANTS)
@orders
@given(seed=seeds, length=st.integers(1, 40), chunk=st.integers(1, 50))
@settings(max_examples=30)
def test_within_the_error_of_exponents(
    variant: str, order: str, seed: int, length: int, chunk: int
) -> None:
    """In fp32 every form is within the errors of its exponents and roundings.

    Two sums of at most n gates err by n u G each, G = sum |g|; a chunk crossing has
    its own and their G add up. A term has 6 roundings a step beside. The log-sum of
    log=full errs by u times its size at each step.
    """
    g, b, s0 = drawn(FP32, seed, length)
    states = model_states(variant, FP32, order, g, b, s0, chunk)
    s, size = s0, np.abs(s0)
    known = [float(x) for x in np.abs(np.concatenate((b.ravel(), s0))) if x > 0]
    logs = max((abs(math.log(x)) for x in known), default=0.0)
    for t in range(length):
        a = np.exp(g[t])
        s, size = a * s + b[t], a * size + np.abs(b[t])
        total = np.abs(g[: t + 1]).sum(axis=0)
        count = 2 * (t + 2) * total + 6 * (t + 2)
        if variant == "log_full":
            count += (t + 2) * (2 * total + logs + math.log(t + 2) + 3)
        bound = 1.01 * count * FP32.unit_roundoff * size
        assert (np.abs(states[t] - s) <= bound).all()


@pytest.mark.parametrize("variant", list(CHUNK_FORMS))
@orders
def test_adjoint_is_the_transpose(variant: str, order: str) -> None:
    """<ybar, S(b)> + <gbar, S_T> = <G, b> + <dS_0, S_0>, exactly on integers."""
    for length in (0, 1, 4, 5, 11):
        b, ybar = integers(length, length, 3), integers(length + 50, length, 3)
        s0, gbar = integers(15, 3), integers(16, 3)
        arithmetic = Arithmetic(FP64)
        algorithm = Algorithm(name="chunk", variant=variant, chunk=4, inner=order)
        steps = exponential_steps(arithmetic, algorithm, np.zeros_like(b), b)
        states = scan(arithmetic, algorithm, steps, s0).states
        adjoint, initial_bar = adjoint_scan(arithmetic, algorithm, steps, ybar, gbar)
        left = np.sum(ybar * states, axis=0) + gbar * (states[-1] if length else s0)
        right = np.sum(adjoint * b, axis=0) + initial_bar * s0
        assert np.array_equal(left, right)
