"""The random streams that recipes draw from."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scancheck.recipes.streams import (
    bell,
    halving,
    integers,
    power_of_two,
    signs,
    stream,
    uniform,
)


def test_the_stream_is_fixed() -> None:
    """The first words of a stream are the ones that stored cases were built from."""
    words = stream("linear_scan", "gaussian_slow", 0).random_raw(2)
    assert words.tolist() == [3816159809465688750, 15180864131536856943]


@given(st.integers(), st.integers())
def test_every_part_of_the_key_counts(left: int, right: int) -> None:
    """Two keys give the same words if and only if they are equal."""
    words = stream("name", left).random_raw(2).tolist()
    assert (words == stream("name", right).random_raw(2).tolist()) == (left == right)


def test_integers_reach_both_ends() -> None:
    """Each integer of the range is drawn, and none outside it."""
    drawn = integers(stream("ends"), -3, 2, (600,))
    assert set(drawn.tolist()) == {-3, -2, -1, 0, 1, 2}


def test_signs_are_both() -> None:
    """Signs are 1 and -1, each in about half of the draws."""
    drawn = signs(stream("signs"), (1000,))
    assert set(drawn.tolist()) == {-1.0, 1.0}
    assert abs(drawn.sum()) < 200


def test_bell_has_mean_zero_and_variance_one() -> None:
    """The moments of 10 000 draws lie within five standard errors of 0 and 1."""
    drawn = bell(stream("bell"), (10_000,))
    assert abs(drawn.mean()) < 0.05
    assert abs(drawn.var() - 1.0) < 0.06
    assert np.abs(drawn).max() <= 2.0 * np.sqrt(3.0)


def test_shapes_may_be_empty() -> None:
    """A shape without elements gives an array of that shape."""
    assert uniform(stream("empty"), 0.0, 1.0, (2, 0, 3)).shape == (2, 0, 3)
    assert bell(stream("empty"), (0, 3)).shape == (0, 3)


@given(st.integers(-1000, 1000))
def test_power_of_two_is_exact_at_integers(exponent: int) -> None:
    """Whole exponents give the power itself."""
    assert power_of_two(np.array(float(exponent))) == np.ldexp(1.0, exponent)


@given(st.integers(0, 50))
def test_halving_reaches_the_neighbours_of_one(k: int) -> None:
    """A rate of 2**(1 - k) keeps exactly 1 - 2**-k, and a rate of 0 keeps all."""
    if k:
        assert halving(np.array(2.0 ** (1 - k))) == 1.0 - 2.0**-k
    assert halving(np.array(0.0)) == 1.0


@given(st.floats(-40.0, 40.0))
def test_power_of_two_is_close_between_integers(exponent: float) -> None:
    """Between integers it lies above the power, by at most 6.2 %."""
    ratio = float(power_of_two(np.array(exponent))) / 2.0**exponent
    assert 1.0 - 2.0**-50 <= ratio <= 1.062
