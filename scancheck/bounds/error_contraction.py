"""What `scancheck.oracles.contraction` has to know of error numbers."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.error_number import ErrorNumber
from scancheck.bounds.rules import Rules
from scancheck.oracles import contraction

FloatArray = NDArray[np.float64]


@lru_cache(maxsize=8)
def error_rules(rules: Rules) -> contraction.Rules:
    """Products and sums as `ErrorNumber` has them."""

    def parts(x: Any) -> tuple[FloatArray, ...]:
        components: tuple[FloatArray, ...] = x.components
        return components

    def grown(terms: int) -> tuple[float, float]:
        """As in `ErrorNumber.summed`."""
        count = max(0, terms - 1)
        growth = float(np.expm1(count * np.log1p(rules.u)))
        return growth, (1.0 + growth) * count * rules.add_eta

    def product(components: FloatArray) -> ErrorNumber:
        return ErrorNumber(rules, *components)

    def made(components: FloatArray, terms: int) -> ErrorNumber:
        value, magnitude, error, peak = components
        peak = np.maximum(peak, magnitude + error)
        number = ErrorNumber(rules, value, magnitude, error, peak).summed(terms - 1)
        number.terms = max(1, terms)
        return number

    return contraction.Rules(
        u=rules.u,
        eta=rules.eta,
        signed=False,
        parts=parts,
        grown=grown,
        product=product,
        made=made,
    )
