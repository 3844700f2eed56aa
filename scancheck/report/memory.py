"""What quantising does to memory: of A, and of a decay that is stored itself.

The memory of a decay exp(d A) is 1 / (d |A|) tokens; that of a decay a, -1 / log a.
"""

import math
from dataclasses import dataclass

from scancheck.formats import FORMATS, round_exact
from scancheck.report.words import plain_number

STEP = 0.01  # the middle, on a log scale, of Mamba's steps 1e-3 .. 1e-1
STATES = 16  # A = -1 .. -16
SHOWN = (1, 2, 4, 8, 12, 16)
BITS = (8, 4)
DECAYS = (0.9, 0.99, 0.999, 0.9999)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedLine:
    """Memory in tokens of one entry of A, exact and quantised."""

    a: int  # -A
    exact: float
    of_a: tuple[float, ...]  # A itself in each number of BITS
    of_log: tuple[float, ...]  # log |A|


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLine:
    """A decay in each storage format, and the memory that is left."""

    decay: float
    exact: float  # memory, tokens
    stored: tuple[tuple[str, float, float], ...]  # format, value, memory


def quantised(value: float, largest: float, bits: int) -> float:
    """The nearest of the evenly spaced signed values up to +-`largest` and zero.

    Symmetric quantisation with one scale: 2**(bits - 1) - 1 steps to each side.
    """
    step = largest / (2 ** (bits - 1) - 1)
    return float(round(value / step) * step)


def quantised_memory() -> list[QuantisedLine]:
    """Mamba's A = -1 .. -16 at a step of 0.01, one scale for the whole matrix."""
    return [
        QuantisedLine(
            a=a,
            exact=_memory(a),
            of_a=tuple(_memory(quantised(a, STATES, bits)) for bits in BITS),
            of_log=tuple(
                _memory(math.exp(quantised(math.log(a), math.log(STATES), bits)))
                for bits in BITS
            ),
        )
        for a in SHOWN
    ]


def _memory(a: float) -> float:
    return 1.0 / (STEP * a) if a else math.inf


def stored_memory() -> list[StoredLine]:
    """Slow decays stored as such; a log gate keeps its relative precision instead."""
    formats = [fmt for name, fmt in FORMATS.items() if name != "fp64"]
    return [
        StoredLine(
            decay=decay,
            exact=-1.0 / math.log(decay),
            stored=tuple(
                (fmt.name, value, -1.0 / math.log(value) if value < 1.0 else math.inf)
                for fmt in formats
                for value in (round_exact(fmt, decay),)
            ),
        )
        for decay in DECAYS
    ]


def tokens_in_words(tokens: float) -> str:
    """Three digits, or endless."""
    return "endless" if math.isinf(tokens) else plain_number(tokens)
