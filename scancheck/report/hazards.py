"""Which formats and variants every hazard of the catalog breaks."""

from collections.abc import Sequence
from dataclasses import dataclass

from scancheck.recipes.catalog import RECIPES
from scancheck.report.ways import by_precision, excess, ways_of
from scancheck.report.words import kind_label, plain_number
from scancheck.study.row import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class HazardTable:
    """Recipes against ways to compute, for one op and form."""

    subject: str
    ways: tuple[str, ...]  # headings
    lines: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...]
    """Recipe, what goes wrong on it, and for each way a verdict and what is shown."""


def hazard_tables(rows: Sequence[Row]) -> list[HazardTable]:
    """One table an op and form: error over that of storing, or another verdict."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.section == "hazard":
            found.setdefault(row.subject, []).append(row)
    return [_table(subject, mine) for subject, mine in found.items()]


def _table(subject: str, rows: list[Row]) -> HazardTable:
    ways = sorted(ways_of(rows), key=by_precision)
    cells = {(row.recipe, kind_label(way)): row for way in ways for row in way.rows}
    headings = tuple(kind_label(way) for way in ways)
    recipes = dict.fromkeys(row.recipe for row in rows)
    return HazardTable(
        subject=subject,
        ways=headings,
        lines=tuple(
            (
                recipe,
                RECIPES[recipe].hazard if recipe in RECIPES else "",
                tuple(_cell(cells.get((recipe, name))) for name in headings),
            )
            for recipe in recipes
        ),
    )


def _cell(row: Row | None) -> tuple[str, str]:
    if row is None:
        return "", ""
    if row.verdict != "PASS":
        return row.verdict, row.verdict
    return row.verdict, plain_number(excess(row), 2)
