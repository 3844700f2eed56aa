"""exp in compiled loops, and its radius."""

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from scancheck.oracles.fp64_exp import exp_with_radius
from scancheck.oracles.jit import jit
from scancheck.oracles.units import FUNCTION_ERROR

FloatArray = NDArray[np.float64]
CONTEXT = mpmath.MPContext()
CONTEXT.prec = 200


@jit()
def exp_all(x, r, value, radius):  # type: ignore[no-untyped-def]
    """Values and radii of exp."""
    for i in range(x.size):
        value[i], radius[i] = exp_with_radius(x[i], r[i])


def exp(x: FloatArray, r: float) -> tuple[FloatArray, FloatArray]:
    """Values and radii of exp for arguments of one radius."""
    value, radius = np.empty_like(x), np.empty_like(x)
    exp_all(x, np.full(x.size, r), value, radius)
    return value, radius


def arguments() -> FloatArray:
    """The whole range, its ends, and both sides of every half multiple of ln 2."""
    rng = np.random.default_rng(1)
    edges = np.log(2.0) * (np.arange(-1078, 1026) + 0.5)
    return np.concatenate(
        [
            rng.uniform(-750.0, 712.0, 3000),
            rng.uniform(-1.0, 1.0, 3000),
            edges,
            np.nextafter(edges, np.inf),
            np.nextafter(edges, -np.inf),
            np.log(2.0) * np.arange(-1080, 1026),
            rng.choice([-1.0, 1.0], 300) * 10.0 ** rng.uniform(-320, 0, 300),
            [0.0, -0.0, -745.13, -745.14, -746.0, 709.78, 709.79, -1e308],
        ]
    )


def test_error_is_below_the_bound() -> None:
    """Normal results are within 3 u, of the 4 u that are charged; some beyond 1 u."""
    x = arguments()
    value, _ = exp(x, 0.0)
    normal = (value > 2.0**-1022) & np.isfinite(value)
    worst = max(
        float(abs(CONTEXT.mpf(v) / CONTEXT.exp(CONTEXT.mpf(a)) - 1))
        for v, a in zip(value[normal], x[normal], strict=True)
    )
    assert 0.25 * FUNCTION_ERROR < worst < 0.75 * FUNCTION_ERROR


@pytest.mark.parametrize("r", [0.0, 1e-300, 1e-16, 1e-3, 0.9, 1.0, 30.0])
def test_radius_holds_both_ends(r: float) -> None:
    """exp at both ends of the argument's radius lies within the result's."""
    x = arguments()[::3]
    value, radius = exp(x, r)
    for v, bound, a in zip(value, radius, x, strict=True):
        if np.isfinite(bound):
            for end in (CONTEXT.mpf(a) - r, CONTEXT.mpf(a) + r):
                assert abs(CONTEXT.exp(end) - CONTEXT.mpf(v)) <= bound
    assert np.isfinite(radius[x < -800.0]).all()
    assert np.isfinite(radius[x < 700.0]).all() == (r < 1.0)


def test_ends_of_the_range() -> None:
    """Infinities and NaN come out as exp gives them, and overflow is not certified."""
    value, radius = exp(np.array([-np.inf, np.inf, np.nan, 709.79, 1e300]), 0.0)
    assert value[0] == 0.0
    assert np.isnan(value[2])
    assert (value[[1, 3, 4]] == np.inf).all()
    assert radius[0] < 1e-320
    assert not np.isfinite(radius[[1, 3, 4]]).any()
    assert not np.isfinite(radius[2])
