"""What `contraction` has to know of balls."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.oracles.contraction import Rules
from scancheck.oracles.tile_ball import TileBall
from scancheck.oracles.units import FLOOR, U64

FloatArray = NDArray[np.float64]


def _parts(x: Any) -> tuple[FloatArray, ...]:
    """Values stand for their magnitudes too; balls have no peaks."""
    value, radius = x.components
    return value, value, radius, np.broadcast_to(0.0, value.shape)


def _grown(terms: int) -> tuple[float, float]:
    """As in `Ball.sum`."""
    return terms * U64 * 1.0001, 0.0


def _product(parts: FloatArray) -> TileBall:
    return TileBall(parts[0], parts[2])


def _sum(parts: FloatArray, terms: int) -> TileBall:
    value, magnitude, radius, _ = parts
    return TileBall(value, radius + _grown(terms)[0] * magnitude)


BALLS = Rules(
    u=U64,
    eta=FLOOR,
    signed=True,
    parts=_parts,
    grown=_grown,
    product=_product,
    made=_sum,
)
