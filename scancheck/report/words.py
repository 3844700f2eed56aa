"""Numbers and ways to compute in the words of the page."""

import math
from collections.abc import Sequence

from scancheck.report.ways import Way
from scancheck.study.row import Row

# Halfway between the exponents 0, 1/2 and 1 of constant, square-root and linear growth.
_ROOT_FROM, _LINEAR_FROM, _FASTER_FROM = 0.25, 0.75, 1.25
MISSING = "n/a"  # where a number does not apply, or is not finite
VARIANTS = {
    "plain": "plain",
    "log_diff": "difference of log sums",
    "kahan": "Kahan on the sum",
    "full": "fully compensated",
}


def scientific(value: float | None) -> str:
    """Two digits, as 1.7e-3; or MISSING."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0.0:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def plain_number(value: float | None, digits: int = 3) -> str:
    """A few significant digits, without an exponent where that is readable."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0.0:
        return "0"
    if not 1e-3 <= abs(value) < 1e5:
        return scientific(value)
    if abs(value) >= 10**digits:
        return f"{value:.0f}"
    return f"{value:#.{digits}g}".rstrip(".")


def variant_words(variant: str) -> str:
    """The variant spelled out; one that this version does not know, as it is."""
    return VARIANTS.get(variant, variant)


def describe_way(way: Way) -> str:
    """The way in words: formats, variant and chunk size."""
    parts = [f"{way.storage} storage", f"{way.compute} arithmetic"]
    if way.state != way.compute:
        parts.append(f"{way.state} state")
    parts.append(variant_words(way.variant))
    if way.chunk is not None:
        parts.append(f"chunk {way.chunk}")
    return ", ".join(parts)


def format_label(way: Way | Row) -> str:
    """Storage format, and where arithmetic or state have another than usual."""
    return ", ".join([way.storage, *_formats_beside(way)])


def algorithm_label(way: Way | Row) -> str:
    """Algorithm, variant, and formats beside the storage format."""
    name = way.algorithm.replace("_", "-")
    parts = [name if way.chunk is None else f"{name} {way.chunk}"]
    if way.variant != "plain":
        parts.append(variant_words(way.variant))
    return ", ".join([*parts, *_formats_beside(way)])


def _formats_beside(way: Way | Row) -> list[str]:
    if way.compute != "fp32":
        return [f"{way.compute} arithmetic"]
    return [f"{way.state} state"] if way.state != way.compute else []


def growth_exponent(rows: Sequence[Row]) -> float | None:
    """Slope of log RMS error on log length, by least squares; None below 3 lengths."""
    points = [
        (math.log(row.T), math.log(row.rms_rel))
        for row in rows
        if row.rms_rel is not None and row.rms_rel > 0.0
    ]
    if len({x for x, _ in points}) < 3:
        return None
    middle = sum(x for x, _ in points) / len(points)
    level = sum(y for _, y in points) / len(points)
    spread = sum((x - middle) ** 2 for x, _ in points)
    return sum((x - middle) * (y - level) for x, y in points) / spread


def growth_in_words(rows: Sequence[Row]) -> str:
    """The fitted growth in words, with its exponent."""
    slope = growth_exponent(rows)
    if slope is None:
        return "too few lengths to fit its growth"
    if slope < -_ROOT_FROM:
        kind = "falls"
    elif slope < _ROOT_FROM:
        kind = "is nearly constant"
    elif slope < _LINEAR_FROM:
        kind = "grows as a square root"
    elif slope < _FASTER_FROM:
        kind = "grows linearly"
    else:
        kind = "grows faster than linearly"
    # Adding zero turns -0.0 into 0.0.
    return f"{kind} (fit: T^{round(slope, 2) + 0.0:.2f})"
