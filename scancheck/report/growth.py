"""How an error grows with the length: constant, square root, linear, and how surely."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scancheck.study.row import Row

LAWS = (
    (0.0, "constant"),
    (0.5, "square root"),
    (1.0, "linear"),
)
# Student's t: 0.975 quantiles for 1, 2, ... degrees of freedom, then the normal one.
_T_QUANTILES = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
_NORMAL_QUANTILE = 1.96
# Over a thousandfold length T**0.05 is sqrt(2), what counts as no more elsewhere.
INDISTINCT = 0.05
FEWEST_LENGTHS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The exponent p of an error that grows as T**p, with its 95 % interval."""

    exponent: float
    low: float
    high: float

    @property
    def laws(self) -> tuple[str, ...]:
        """The laws that the interval allows; none or several where it cannot say."""
        return tuple(
            name
            for p, name in LAWS
            if self.low - INDISTINCT <= p <= self.high + INDISTINCT
        )


def fit_growth(rows: Sequence[Row]) -> Growth | None:
    """Least squares of log RMS error on log length; None below three lengths.

    The interval is Student's, for independent errors about the line.
    """
    points = [
        (math.log(row.T), math.log(row.rms_rel))
        for row in rows
        if row.rms_rel is not None and row.rms_rel > 0.0
    ]
    if len({x for x, _ in points}) < FEWEST_LENGTHS:
        return None
    count = len(points)
    middle = sum(x for x, _ in points) / count
    level = sum(y for _, y in points) / count
    spread = sum((x - middle) ** 2 for x, _ in points)
    slope = sum((x - middle) * (y - level) for x, y in points) / spread
    left = sum((y - level - slope * (x - middle)) ** 2 for x, y in points)
    free = count - 2
    quantile = _T_QUANTILES[free - 1] if free <= len(_T_QUANTILES) else _NORMAL_QUANTILE
    half = quantile * math.sqrt(left / free / spread)
    return Growth(exponent=slope, low=slope - half, high=slope + half)


def growth_in_words(rows: Sequence[Row]) -> str:
    """The law, the exponent and its interval; or why there is none."""
    found = fit_growth(rows)
    if found is None:
        return "too few lengths to fit its growth"
    # Adding zero turns -0.0 into 0.0.
    p, low, high = (round(x, 2) + 0.0 for x in (found.exponent, found.low, found.high))
    fit = f"T^{p:.2f}, 95 % sure of {low:.2f} to {high:.2f}"
    return f"{_kind(found)} ({fit})"


def _kind(found: Growth) -> str:
    names = [name for _, name in LAWS]
    match found.laws:
        case (law,):
            return {
                "constant": "stays constant",
                "square root": "grows as a square root",
                "linear": "grows linearly",
            }[law]
        case ():
            above = [p for p, _ in LAWS if p < found.exponent]
            if not above:
                return "falls"
            if len(above) == len(LAWS):
                return "grows faster than linearly"
            low = names[len(above) - 1]
            return f"grows between {low} and {names[len(above)]}"
        case several:
            return f"is {' or '.join(several)}: these lengths cannot tell"
