"""Matrix products, inverses and the tape: each rounds where it says so."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from scancheck.formats import BF16, FP16, FP32, FP64, TF32, round_array
from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.chunk_inverse import (
    by_blocks,
    by_doubling,
    by_substitution,
    inverse_of_unit_plus,
)
from scancheck.kernels.models.matrix_products import MatrixProducts
from scancheck.kernels.models.tape import Tape, Variable

SINGLE = Arithmetic(FP32)


def normal(*shape: int, seed: int = 0) -> Array:
    """Normal numbers in float32."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("fmt", [FP16, BF16, TF32])
def test_operands_are_rounded_and_sums_are_not(fmt: Any) -> None:
    """The product of rounded operands, summed upwards in float32."""
    x, y = normal(3, 5), normal(5, 2, seed=1)
    got = MatrixProducts(arithmetic=SINGLE, operands=fmt)(x, y)
    p = round_array(fmt, x.astype(np.float64)).astype(np.float32)
    q = round_array(fmt, y.astype(np.float64)).astype(np.float32)
    for i in range(3):
        for j in range(2):
            total = p[i, 0] * q[0, j]
            for n in range(1, 5):
                total = total + p[i, n] * q[n, j]
            assert got[i, j] == total
    assert not np.array_equal(got, MatrixProducts(arithmetic=SINGLE)(x, y))


def test_truncated_sums_are_towards_zero() -> None:
    """Each sum is the float32 next to the exact one that is not larger."""
    products = MatrixProducts(arithmetic=SINGLE, truncate=True)
    x = np.concatenate((normal(2000), np.float32(2.0**30) * normal(8)))
    y = np.concatenate((normal(2000, seed=1), normal(8, seed=2)))
    got = products.add(x, y)
    for a, b, total in zip(x, y, got, strict=True):
        exact = Fraction(float(a)) + Fraction(float(b))
        value = Fraction(float(total))
        assert abs(value) <= abs(exact)
        outward = np.nextafter(total, np.float32(np.copysign(np.inf, float(exact))))
        assert value == exact or abs(Fraction(float(outward))) > abs(exact)
    assert (got != x + y).any()


def test_empty_products_are_zero() -> None:
    """A sum over no terms."""
    zero = MatrixProducts(arithmetic=SINGLE)(normal(4, 2, 0), normal(0, 3))
    assert zero.shape == (4, 2, 3)
    assert not zero.any()


def strictly_lower(size: int, *, repeated: bool = False) -> Array:
    """A Gram matrix of unit keys below the diagonal, two of them."""
    keys = normal(2, size, 8).astype(np.float64)
    if repeated:
        keys[:] = keys[:, :1]
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    return np.asarray(np.tril(keys @ keys.swapaxes(-1, -2), -1))


@pytest.mark.parametrize("size", [1, 2, 7, 16, 33, 64])
@pytest.mark.parametrize("method", [by_substitution, by_blocks, by_doubling])
def test_inverse(method: Any, size: int) -> None:
    """(I + N) T is one in fp64, up to the roundings of its own size."""
    products = MatrixProducts(arithmetic=Arithmetic(FP64))
    lower = strictly_lower(size)
    unit = np.eye(size) + lower
    left = np.abs(unit @ method(products, lower) - np.eye(size))
    assert left.max() <= 1000 * size * 2.0**-53


def test_substitution_has_entries_of_the_inverse_itself() -> None:
    """With one key for all tokens T is bidiagonal, and its zeros are exact."""
    products = MatrixProducts(arithmetic=SINGLE)
    lower = np.tril(np.ones((1, 40, 40), np.float32), -1)
    truth = np.eye(40, dtype=np.float32) - np.eye(40, k=-1, dtype=np.float32)
    for method in (by_substitution, by_blocks):
        assert np.array_equal(method(products, lower)[0], truth)
    assert not np.array_equal(by_doubling(products, lower)[0], truth)


def test_inverse_is_pulled_back() -> None:
    """The cotangent is that of finite differences of the exact inverse."""
    tape = Tape(Arithmetic(FP64))
    lower = Variable(strictly_lower(6))
    products = MatrixProducts(arithmetic=Arithmetic(FP64))
    inverse = inverse_of_unit_plus(tape, products, "substitution", lower)
    seed = normal(2, 6, 6, seed=3).astype(np.float64)
    tape.pull_back([(inverse, seed)])
    assert lower.bar is not None
    step = 1e-6
    for t, j in ((1, 0), (5, 2), (4, 3)):
        moved = [lower.value.copy() for _ in range(2)]
        moved[0][:, t, j] += step
        moved[1][:, t, j] -= step
        up, down = (np.linalg.inv(np.eye(6) + x) for x in moved)
        slope = ((up - down) / (2 * step) * seed).sum((-1, -2))
        assert np.allclose(lower.bar[:, t, j], slope, rtol=1e-8)
    assert not np.triu(lower.bar).any()


def test_tape_sums_over_what_was_broadcast() -> None:
    """A cotangent has its variable's shape, added in ascending order."""
    tape = Tape(SINGLE)
    x, y = Variable(normal(3, 1)), Variable(normal(3, 4, seed=1))
    product = tape.mul(x, y)
    seed = normal(3, 4, seed=2)
    tape.pull_back([(product, seed)])
    terms = seed * y.value
    total = ((terms[:, 0] + terms[:, 1]) + terms[:, 2]) + terms[:, 3]
    assert x.bar is not None
    assert np.array_equal(x.bar, total[:, None])


def test_tape_adds_the_later_use_first() -> None:
    """Three uses of one variable, in float32 where the order shows."""
    tape = Tape(SINGLE)
    x = Variable(np.ones(1, np.float32))
    uses = [tape.neg(x) for _ in range(3)]
    bars = [np.float32(v) * np.ones(1, np.float32) for v in (2.0**-24, 2.0**-24, -1.0)]
    tape.pull_back(list(zip(uses, bars, strict=True)))
    assert x.bar is not None
    expected = (np.float32(1.0) - np.float32(2.0**-24)) - np.float32(2.0**-24)
    assert x.bar[0] == expected != np.float32(1.0)


def test_parts_do_not_spoil_shared_cotangents() -> None:
    """A part adds to its own rows, not to what another variable holds."""
    tape = Tape(Arithmetic(FP64))
    x, y = Variable(np.ones((2, 2))), Variable(np.ones((2, 2)))
    row = tape.part(x, 0)
    both = tape.add(x, y)
    tape.pull_back([(both, np.ones((2, 2))), (row, np.full(2, 5.0))])
    assert x.bar is not None
    assert y.bar is not None
    assert np.array_equal(x.bar, [[6.0, 6.0], [1.0, 1.0]])
    assert np.array_equal(y.bar, np.ones((2, 2)))


def test_nothing_comes_back_through_a_mask() -> None:
    """exp overflows behind the mask, and neither value nor cotangent sees it."""
    tape = Tape(SINGLE)
    x = Variable(np.array([1.0, 1e4], np.float32))
    y = tape.masked_exp(np.array([True, False]), x)
    with np.errstate(all="ignore"):
        tape.pull_back([(y, np.array([1.0, np.inf], np.float32))])
    assert y.value[1] == 0.0
    assert x.bar is not None
    assert x.bar[1] == 0.0
    assert x.bar[0] == y.value[0]
