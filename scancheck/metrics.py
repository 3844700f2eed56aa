"""How far a kernel's tensor is from the truth, measured against its budget."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.budget import Allowance
from scancheck.oracles.ladder import Reference, is_certified

FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMetrics:
    """One tensor of one run against truth and budget, elementwise."""

    name: str
    error: FloatArray  # |got - truth| less the reference's radius; inf where undefined
    allowance: FloatArray  # E
    ratio: FloatArray  # error / E; 0 where excused or right in kind
    nonfinite: Mask  # NaN or infinity where the truth is finite
    wrong_kind: Mask  # finite where infinity is right, or the wrong infinity
    excused: Mask  # not finite, or no reference is, and the range predictor said why
    uncertified: Mask  # the reference is not known closely enough
    overflowing: Mask  # may leave the format's range: no rounding to speak of
    vacuous: Mask  # E >= |truth|: a pass carries no information

    @property
    def worst(self) -> tuple[int, ...] | None:
        """Index of the largest ratio; None for an empty tensor."""
        if self.ratio.size == 0:
            return None
        flat = int(np.argmax(self.ratio))
        return tuple(int(i) for i in np.unravel_index(flat, self.ratio.shape))

    @property
    def wrong(self) -> Mask:
        """Elements that no kernel under the contract can have produced."""
        return (self.ratio > 1.0) | self.nonfinite | self.wrong_kind


def measure(
    name: str, got: FloatArray, truth: Reference, allowance: Allowance
) -> TensorMetrics:
    """The metrics of one tensor; all arrays have its shape."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        off = np.abs((got - truth.hi) - truth.lo)
        error = np.maximum(off - truth.radius, 0.0)
        e = allowance.error
        # Half an ulp beyond the largest value is where rounding gives infinity.
        edge = allowance.largest * (1.0 + allowance.storage_u / 2)
        size = np.abs(truth.hi)
        reach = truth.radius + e
        above, below = truth.hi + reach >= edge, truth.hi - reach <= -edge
        may_be_infinite = above | below
        must_be_infinite = size - reach > edge
        right_infinity = ((got == np.inf) & above) | ((got == -np.inf) & below)
        if not allowance.has_infinity:
            # OFP8 section 5: an overflow is NaN or, saturated, the largest value.
            top = allowance.largest
            right_infinity = ((got == top) & above) | ((got == -top) & below)
            right_infinity |= np.isnan(got) & may_be_infinite
        bad = ~np.isfinite(got) & ~right_infinity
        excused = bad & allowance.overflows
        wrong_kind = np.isfinite(got) & must_be_infinite & ~allowance.overflows
        wrong_kind &= ~right_infinity
        wrong_kind |= np.isinf(got) & may_be_infinite & ~right_infinity & ~excused
        nonfinite = bad & ~excused & ~wrong_kind
        ratio = np.where(error == 0.0, 0.0, error / e)
        ratio = np.where(bad | right_infinity | must_be_infinite, 0.0, ratio)
        ratio = np.where(np.isinf(truth.radius), 0.0, ratio)
        ratio = np.where(np.isnan(ratio), np.inf, ratio)
        # Where the truth must overflow there is no number left to be unsure of.
        uncertified = ~is_certified(truth.radius, e) & ~must_be_infinite
        # Beyond fp64's own range there is no reference; the predictor said so as well.
        excused |= uncertified & allowance.overflows
        uncertified &= ~allowance.overflows
        overflowing = may_be_infinite | right_infinity | excused
        vacuous = e >= size
    unsure = uncertified & ~(ratio > 1.0)
    return TensorMetrics(
        name=name,
        error=np.where(np.isnan(error), np.inf, error),
        allowance=e,
        ratio=np.where(unsure, 0.0, ratio),
        nonfinite=nonfinite & np.isfinite(truth.radius),
        wrong_kind=wrong_kind & np.isfinite(truth.radius),
        excused=excused,
        uncertified=uncertified,
        overflowing=overflowing,
        vacuous=vacuous,
    )


def effective_bits(metrics: TensorMetrics, truth: Reference) -> float | None:
    """-log2 of the RMS error over the RMS truth; None when either is degenerate."""
    finite = np.isfinite(metrics.error)
    size = float(np.sqrt(np.mean(truth.hi[finite] ** 2))) if finite.any() else 0.0
    if size == 0.0 or not np.isfinite(size):
        return None
    error = float(np.sqrt(np.mean(metrics.error[finite] ** 2)))
    return float(-np.log2(error / size)) if error > 0.0 else None
