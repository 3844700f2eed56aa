"""Sums of sums: any order in which a kernel may add their terms is covered."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines.emulator import Array, Machine

from scancheck.bounds.error_number import ErrorNumber, exact_number
from scancheck.bounds.rules import Rules, rules_for
from scancheck.contract import Contract, Structure
from scancheck.formats import BF16, FORMATS, FP32, round_array


def rules(dtype: str, kind: str = "unknown", ftz: str = "no") -> Rules:
    """Rules of a contract that computes in `dtype`."""
    structure = Structure(kind=kind)
    return rules_for(Contract(compute=dtype, structure=structure, ftz=ftz), dtype)


def added(m: Machine, terms: list[Array], order: np.random.Generator) -> Array:
    """The terms added two at a time, any two."""
    terms = list(terms)
    while len(terms) > 1:
        left = terms.pop(int(order.integers(len(terms))))
        right = terms.pop(int(order.integers(len(terms))))
        terms.append(m.add(left, right))
    return terms[0]


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    dtype=st.sampled_from(["fp32", "bf16"]),
    kind=st.sampled_from(["unknown", "sequential"]),
    direction=st.sampled_from(["nearest", "away", "random"]),
    seed=st.integers(0, 2**32),
)
def test_terms_of_several_sums_may_be_mixed(
    sizes: list[int], dtype: str, kind: str, direction: str, seed: int
) -> None:
    """sum(x1) + sum(x2) + ... as a kernel may add it, one term after any other."""
    fmt, rng = FORMATS[dtype], np.random.default_rng(seed)
    groups = []
    for n in sizes:
        scale = 2.0 ** rng.uniform(-12, 12, (n, 20))
        groups.append(round_array(fmt, rng.normal(size=(n, 20)) * scale))
    numbers = [exact_number(rules(dtype, kind), group).sum(0) for group in groups]
    total = numbers[0]
    for number in numbers[1:]:
        total = total + number
    terms = [row for group in groups for row in group]
    m = Machine(fmt=fmt, direction=direction, generator=rng)
    if m.exact:
        terms = [np.asarray(row, dtype=np.longdouble) for row in terms]
    error = np.abs(added(m, terms, rng) - np.sum(terms, 0, dtype=np.longdouble))
    assert np.all(error <= total.error * (1 + 1e-9))
    assert total.terms == sum(sizes)


def test_a_large_term_added_first_meets_every_addition() -> None:
    """D u before the sum over states: 8 u |D u|, where one addition gives u |D u|."""
    fmt = FP32
    large, small = np.array([1.0]), np.full((8, 1), 1e-6)
    small = round_array(fmt, small)
    number = exact_number(rules("fp32"), small).sum(0)
    number = number + exact_number(rules("fp32"), large)
    m = Machine(fmt=fmt, direction="away")
    got = large.astype(np.longdouble)
    for row in small:
        got = m.add(got, row)
    error = np.abs(got - (1.0 + np.sum(small, dtype=np.longdouble)))
    assert np.all(error > 7.9 * fmt.unit_roundoff)
    assert np.all(error <= number.error)


@pytest.mark.parametrize("kind", ["unknown", "sequential"])
def test_products_of_sums_may_be_multiplied_out(kind: str) -> None:
    """(x + y) z + v is bounded as x z + y z + v is, in any order."""
    rng = np.random.default_rng(3)
    x, y, z, v = (round_array(BF16, rng.normal(size=200)) for _ in range(4))
    values = [exact_number(rules("bf16", kind), part) for part in (x, y, z, v)]
    bound = (values[0] + values[1]) * values[2] + values[3]
    for direction in ("away", "zero", "random", "nearest"):
        m = Machine(fmt=BF16, direction=direction)
        wide = [np.asarray(p, dtype=np.longdouble) for p in (x, y, z, v)]
        xx, yy, zz, vv = wide if m.exact else (x, y, z, v)
        want = (wide[0] + wide[1]) * wide[2] + wide[3]
        for got in (
            m.add(m.mul(m.add(xx, yy), zz), vv),
            m.add(m.add(m.mul(xx, zz), vv), m.mul(yy, zz)),
            m.add(m.add(m.mul(xx, zz), m.mul(yy, zz)), vv),
        ):
            # Under a declared order sums are as written, so only that one is bounded.
            assert np.all(np.abs(got - want) <= bound.error) or kind == "sequential"
        got = m.add(m.mul(m.add(xx, yy), zz), vv)
        assert np.all(np.abs(got - want) <= bound.error)


def test_flushed_sums_are_bounded() -> None:
    """Every addition of a sum may flush: n - 1 of them, whatever the path."""
    lam = FP32.smallest_normal
    rng = np.random.default_rng(0)
    x = round_array(FP32, lam * rng.uniform(-2, 2, (16, 400)))
    bound = exact_number(rules("fp32", ftz="yes"), x).sum(0)
    m = Machine(fmt=FP32, flush=True, flush_inputs=True)
    error = np.abs(added(m, list(x), rng) - np.sum(x, 0))
    assert np.all(error <= bound.error)
    assert np.max(error) > lam
    assert isinstance(bound, ErrorNumber)
