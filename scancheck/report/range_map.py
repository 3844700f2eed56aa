"""Where products of decays leave the range, by mean log decay, chunk and format."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scancheck.formats import FORMATS, Format
from scancheck.study.row import Row

LOG_DECAYS = (-0.01, -0.05, -0.1, -0.3, -1.0, -5.0)
CHUNKS = (16, 32, 64, 128, 256, 1024)
_SHOWN = tuple(name for name in FORMATS if name != "fp64")
# Mildest first; each holds what the ones before it do.
STATUS = ("fits", "subnormal", "inverse overflows", "zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The product of decays over one chunk."""

    log_product: float
    by_format: tuple[tuple[str, tuple[str, ...]], ...]  # status, formats; none that fit

    @property
    def text(self) -> str:
        """The product as a power of e, for example e^-76.8."""
        digits = ".1f" if abs(self.log_product) >= 0.1 else ".1g"
        return f"e^{self.log_product:{digits}}" if self.log_product else "1"

    @property
    def words(self) -> tuple[str, ...]:
        """What becomes of it, in the formats where it does not fit."""
        return tuple(
            f"{'every format' if len(names) == len(_SHOWN) else ', '.join(names)}: "
            f"{kind}"
            for kind, names in self.by_format
        )

    @property
    def worst(self) -> str:
        """The worst status of fp32, the format that arithmetic usually has."""
        return next((s for s, names in self.by_format if "fp32" in names), STATUS[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeLine:
    """One mean log decay over all chunk sizes."""

    label: str
    log_decay: float
    cells: tuple[Cell, ...]


def status(fmt: Format, log_product: float) -> str:
    """What becomes of exp(log_product), and of its inverse, in a format.

    `inverse overflows` is where exp(-c) of the factored log form is infinite; `zero`
    where the product itself rounds to zero.
    """
    if log_product < math.log(fmt.smallest_subnormal) - math.log(2.0):
        return "zero"
    if -log_product > math.log(fmt.largest):
        return "inverse overflows"
    if log_product < math.log(fmt.smallest_normal):
        return "subnormal"
    return "fits"


def range_cell(log_decay: float, chunk: int) -> Cell:
    """The cell of a mean log decay a token over a chunk."""
    product = log_decay * chunk
    found = {name: status(FORMATS[name], product) for name in _SHOWN}
    return Cell(
        log_product=product,
        by_format=tuple(
            (kind, tuple(name for name, got in found.items() if got == kind))
            for kind in reversed(STATUS[1:])
            if kind in found.values()
        ),
    )


def range_map() -> list[RangeLine]:
    """The map of round log decays."""
    return [_line(f"{log:g}", log) for log in LOG_DECAYS]


def measured_ranges(rows: Sequence[Row]) -> list[RangeLine]:
    """The same for the inputs of the sweep: the strongest chain of each recipe."""
    strongest: dict[str, float] = {}
    for row in rows:
        if row.kind == "case" and row.strongest_log_decay is not None:
            before = strongest.get(row.recipe, 0.0)
            strongest[row.recipe] = min(before, row.strongest_log_decay)
    lines = sorted(strongest.items(), key=lambda item: -item[1])
    return [_line(f"{recipe}: {log:.3g}", log) for recipe, log in lines]


def _line(label: str, log_decay: float) -> RangeLine:
    cells = tuple(range_cell(log_decay, chunk) for chunk in CHUNKS)
    return RangeLine(label=label, log_decay=log_decay, cells=cells)
