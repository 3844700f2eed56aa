"""log(1 + x) in compiled loops."""

import mpmath
import numpy as np
from numpy.typing import NDArray

from scancheck.oracles.fp64_log1p import log1p
from scancheck.oracles.jit import jit
from scancheck.oracles.units import FUNCTION_ERROR, TINY

FloatArray = NDArray[np.float64]
CONTEXT = mpmath.MPContext()
CONTEXT.prec = 200


@jit()
def log1p_all(x, value):  # type: ignore[no-untyped-def]
    """Values of log(1 + x)."""
    for i in range(x.size):
        value[i] = log1p(x[i])


def arguments() -> FloatArray:
    """[0, 1], even and by magnitude down to the smallest subnormal, and its ends."""
    rng = np.random.default_rng(1)
    small = 2.0 ** rng.uniform(-1074, 0, 2000)
    ends = [0.0, TINY, 3 * TINY, 2.0**-1022, np.nextafter(1.0, 0.0), 1.0]
    return np.concatenate([rng.uniform(0.0, 1.0, 4000), small, ends])


def test_error_is_below_the_bound() -> None:
    """Results are within 3.4 u or TINY, of the 4 u that are charged; some beyond u."""
    x = arguments()
    value = np.empty_like(x)
    log1p_all(x, value)
    worst = 0.0
    for a, v in zip(x, value, strict=True):
        exact = CONTEXT.log1p(CONTEXT.mpf(a))
        error = abs(CONTEXT.mpf(v) - exact)
        if a < 2.0**-1000:
            assert error <= TINY
        else:
            worst = max(worst, float(error / exact))
    assert 0.25 * FUNCTION_ERROR < worst < 0.85 * FUNCTION_ERROR


def test_nan_passes() -> None:
    """NaN stays NaN."""
    value = np.empty(1)
    log1p_all(np.array([np.nan]), value)
    assert np.isnan(value[0])
