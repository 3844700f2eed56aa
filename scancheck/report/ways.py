"""Ways to compute an op, each with all of its cases, cheapest first."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from scancheck.formats import FORMATS
from scancheck.study.row import Row

_FIELDS = ("algorithm", "variant", "storage", "compute", "state", "chunk")
# Operations a token of one channel on a scalar unit: a product and a sum; Neumaier's
# sum takes five more, TwoProd and the decayed compensation twenty more (Ogita, Rump and
# Oishi 2005: 17 and 6 operations for TwoProd and TwoSum).
_OPERATIONS = {"plain": 2, "kahan": 7, "full": 27}
# A log form: difference, exponential, product and sum for half the pairs.
_OPERATIONS_A_PAIR = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to compute an op, and what became of its sequence output."""

    op: str  # and its form, where it has several
    algorithm: str
    variant: str
    storage: str
    compute: str
    state: str
    chunk: int | None
    rows: tuple[Row, ...]  # forward, one a case; never empty

    @property
    def passed(self) -> int:
        """Cases with verdict PASS."""
        return sum(row.verdict == "PASS" for row in self.rows)

    @property
    def worst(self) -> Row:
        """The case with the largest relative RMS error; one without counts most."""
        return max(self.rows, key=lambda row: or_infinite(row.rms_rel))

    @property
    def farthest(self) -> Row:
        """The case with the largest error over that of storing the exact answer."""
        return max(self.rows, key=excess)


def excess(row: Row) -> float:
    """Error over the error of storing the exact answer; infinite where undefined.

    1 where both are zero, as on data that every format holds exactly.
    """
    if row.rms_rel is None or row.floor_rel is None:
        return math.inf
    if row.floor_rel == 0.0:
        return 1.0 if row.rms_rel == 0.0 else math.inf
    return row.rms_rel / row.floor_rel


def or_infinite(value: float | None) -> float:
    """The value; infinity where there is none."""
    return math.inf if value is None else value


def ways_of(rows: Iterable[Row]) -> list[Way]:
    """Every way to compute that has forward cases, cheapest first."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.kind == "case" and row.sequence and row.cotangent is None:
            key = (row.subject, *(getattr(row, name) for name in _FIELDS))
            groups.setdefault(key, []).append(row)
    ways = [
        Way(
            op=found[0].subject,
            **{name: getattr(found[0], name) for name in _FIELDS},
            rows=tuple(found),
        )
        for found in groups.values()
    ]
    return sorted(ways, key=cost)


def cost(way: Way) -> tuple[object, ...]:
    """Sort key, cheapest first: bytes moved, then operations times their width.

    A larger chunk carries fewer states, so it comes first; of two formats of one width
    the more precise one does.
    """
    work = operations(way.variant, way.chunk) * _bits(way.compute)
    return (
        way.op,
        _bits(way.storage),
        work,
        _bits(way.state),
        -(way.chunk or 0),
        -FORMATS[way.storage].precision if way.storage in FORMATS else 0,
        way.storage,
        way.algorithm,
    )


def by_precision(way: Way) -> tuple[object, ...]:
    """Sort key: longest format first, then what is shortened beside it, then plain."""
    plain = way.variant != "plain", way.variant
    return (
        -_bits(way.storage),
        way.storage,
        way.compute == way.storage != "fp32",
        way.state == way.storage != "fp32",
        *plain,
    )


def same_kind(left: Way, right: Way) -> bool:
    """Whether two ways differ in their chunk size alone, if at all."""
    return kind_of(left) == kind_of(right)


def kind_of(way: Way) -> tuple[str, ...]:
    """Everything about a way but its chunk size."""
    return (way.op, way.algorithm, way.variant, way.storage, way.compute, way.state)


def operations(variant: str, chunk: int | None) -> float:
    """Scalar operations a token of one channel, about."""
    if variant in _OPERATIONS:
        return _OPERATIONS[variant]
    return _OPERATIONS_A_PAIR * ((chunk or 1) + 1) / 2


def _bits(name: str) -> int:
    """Width of a format; of one that this version does not know, as fp32."""
    return FORMATS[name].bits if name in FORMATS else 32
