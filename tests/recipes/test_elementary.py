"""exp, log and the logistic function, the same bits everywhere."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scancheck.recipes.elementary import (
    exponential,
    exponential_of_small,
    logarithm,
    logistic,
)


def close(got: object, want: float, ulps: float) -> bool:
    """Whether a value of one element lies within some ulps of another."""
    return abs(float(np.asarray(got)) - want) <= ulps * math.ulp(want)


@given(st.floats(-1.0, 1.0))
def test_exponential_of_small_is_close_to_exp(x: float) -> None:
    """The series differs from exp by at most 16 ulp."""
    assert close(exponential_of_small(np.array(x)), math.exp(x), 16)


@given(st.floats(-700.0, 700.0))
def test_exponential_is_close_to_exp(x: float) -> None:
    """So does the function of any argument whose exp is normal."""
    assert close(exponential(np.array(x)), math.exp(x), 16)


@given(st.floats(2.0**-1000, 2.0**1000))
def test_logarithm_is_close_to_log(x: float) -> None:
    """log is reached to 8 ulp, near 1 too, where it is small."""
    assert close(logarithm(np.array(x)), math.log(x), 8)
    near = 1.0 + x * 2.0**-1010
    assert close(logarithm(np.array(near)), math.log(near), 8)


@given(st.floats(-300.0, 300.0))
def test_logistic_is_close_to_its_definition(x: float) -> None:
    """1 / (1 + exp(-x)) to 32 ulp."""
    assert close(logistic(np.array(x)), 1.0 / (1.0 + math.exp(-x)), 32)
