"""The coefficients of the CUDA functions, fitted again and compared with the code's.

    python benchmarks/cuda_function_coefficients.py

Each polynomial is the best one for the relative error of its function whose
coefficients are fp32 numbers found one by one: the lowest is rounded (the next four
both up and down), the others are fitted again around it. The fit is Remez's exchange
on Chebyshev points, for which fp64 suffices, as no fit is better than 1e-10. What is
printed is the largest relative error in exact arithmetic, by mpmath at 40 digits.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray

from scancheck.kernels.models import cuda_functions

FloatArray = NDArray[np.float64]
POINTS = 2001
DIGITS = 40
TWO_WAYS = 4  # coefficients after the lowest that are tried rounded up and down


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A polynomial c0 + c1 x + ... that `wanted` should be."""

    name: str  # its tuple of coefficients in kernels/models/cuda_functions.py
    low: float
    high: float
    degree: int
    # All three of x, an mpmath number.
    wanted: Callable[[mpmath.mpf], mpmath.mpf]
    weight: Callable[[mpmath.mpf], mpmath.mpf]  # relative error per unit of the fit's


def _exp2_rest(f: mpmath.mpf) -> mpmath.mpf:
    return mpmath.expm1(f * mpmath.ln(2)) / f if f else mpmath.ln(2)


def _expm1_rest(r: mpmath.mpf) -> mpmath.mpf:
    return (mpmath.expm1(r) - r) / r**2 if r else mpmath.mpf(1) / 2


def _log1p_rest(f: mpmath.mpf) -> mpmath.mpf:
    return (mpmath.log1p(f) - f) / f**2 if f else -mpmath.mpf(1) / 2


HALF_LN_2 = 0.34658

FITS = (
    Fit(
        name="EXP2",
        low=-0.5,
        high=0.5,
        degree=5,
        wanted=_exp2_rest,
        weight=lambda f: abs(f) / mpmath.mpf(2) ** f,
    ),
    Fit(
        name="EXPM1",
        low=-HALF_LN_2,
        high=HALF_LN_2,
        degree=5,
        wanted=_expm1_rest,
        weight=lambda r: r**2 / abs(mpmath.expm1(r)) if r else mpmath.mpf(0),
    ),
    Fit(
        name="LOG1P",
        low=0.0,
        high=1.0,
        degree=8,
        wanted=_log1p_rest,
        weight=lambda f: f**2 / abs(mpmath.log1p(f)) if f else mpmath.mpf(0),
    ),
    Fit(
        name="LOG",
        low=-0.25,
        high=0.5,
        degree=8,
        wanted=_log1p_rest,
        weight=lambda f: f**2 / abs(mpmath.log1p(f)) if f else mpmath.mpf(0),
    ),
    Fit(
        name="RECIPROCAL",
        low=0.0,
        high=1.0,
        degree=2,
        wanted=lambda e: 1 / (1 + e),
        weight=lambda e: 1 + e,
    ),
)


def coefficients(fit: Fit) -> list[float]:
    """The fp32 coefficients of the fit, lowest degree first."""
    with mpmath.workdps(DIGITS):
        middle, half = (fit.low + fit.high) / 2, (fit.high - fit.low) / 2
        x = middle - half * np.cos(np.linspace(0.0, np.pi, POINTS))
        wanted = np.array([float(fit.wanted(mpmath.mpf(v))) for v in x])
        weight = np.array([float(fit.weight(mpmath.mpf(v))) for v in x])
    return min(
        _rounded(fit.degree, x, wanted, weight, []),
        key=lambda found: np.abs(weight * (_value(found, x) - wanted)).max(),
    )


def _rounded(
    degree: int,
    x: FloatArray,
    wanted: FloatArray,
    weight: FloatArray,
    fixed: list[float],
) -> Iterator[list[float]]:
    """Polynomials whose lowest coefficients are `fixed`, the others rounded in turn."""
    count = len(fixed)
    if count > degree:
        yield fixed
        return
    rest = wanted - _value(fixed, x)
    # But for this sign x**count, x**(count + 1), ... alternates like 1, x, ...
    signed = np.where(x < 0.0, (-1.0) ** count, 1.0) * weight
    basis = np.stack([x**k for k in range(count, degree + 1)], axis=1)
    best = _minimax(basis * signed[:, None], rest * signed)[0]
    nearest = np.float32(best)
    choices = {nearest}
    if 0 < count <= TWO_WAYS:
        away = np.float32(np.inf if nearest < best else -np.inf)
        choices.add(np.nextafter(nearest, away))
    for choice in sorted(choices):
        yield from _rounded(degree, x, wanted, weight, [*fixed, float(choice)])


def _minimax(basis: FloatArray, wanted: FloatArray) -> FloatArray:
    """Coefficients of the smallest max |basis c - wanted| met in an exchange."""
    count = basis.shape[1]
    # Least squares on Chebyshev points start close to the best fit.
    c = best = np.linalg.lstsq(basis, wanted, rcond=None)[0]
    smallest = np.inf
    signs = (-1.0) ** np.arange(count + 1)
    for _ in range(30):
        error = basis @ c - wanted
        if np.abs(error).max() < smallest:
            smallest, best = np.abs(error).max(), c
        chosen = _extrema(error, count + 1)
        if chosen is None:
            break
        system = np.column_stack([basis[chosen], signs])
        c = np.linalg.solve(system, wanted[chosen])[:-1]
    return best


def _extrema(error: FloatArray, count: int) -> NDArray[np.int64] | None:
    """The `count` largest neighbouring extrema of alternating sign."""
    places = np.nonzero(error)[0]
    changes = np.nonzero(np.diff(np.sign(error[places])))[0] + 1
    pieces = np.split(places, changes)
    peaks = np.array([piece[np.argmax(np.abs(error[piece]))] for piece in pieces])
    if len(peaks) < count:
        return None
    starts = range(len(peaks) - count + 1)
    best = max(starts, key=lambda s: np.abs(error[peaks[s : s + count]]).min())
    return np.asarray(peaks[best : best + count])


def largest_error(fit: Fit, found: list[float]) -> float:
    """The largest relative error of the function, all arithmetic exact."""
    with mpmath.workdps(DIGITS):
        points = mpmath.linspace(fit.low, fit.high, POINTS)
        return max(
            abs(float(fit.weight(x) * (_value(found, x) - fit.wanted(x))))
            for x in points
        )


def _value(found: list[float], x: Any) -> Any:
    """The polynomial at x, in x's own arithmetic."""
    total = 0 * x
    for c in reversed(found):
        total = total * x + c
    return total


def main() -> None:
    """One line per polynomial."""
    for fit in FITS:
        found = coefficients(fit)
        in_code = getattr(cuda_functions, fit.name, None)
        same = "as in the code" if in_code == tuple(found) else "NOT as in the code"
        print(f"{fit.name}: largest relative error {largest_error(fit, found):.3g}")
        print(f"  {same}: {', '.join(value.hex() for value in found)}")


if __name__ == "__main__":
    main()
