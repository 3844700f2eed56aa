"""Kill rates and false alarms of each rule, counted from the rows."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from power_rows import Row
from power_rules import LABELS

from scancheck.recipes.catalog import RECIPES
from scancheck.recipes.recipe import GROUPS

ORDINARY = "gaussian_slow"  # normal data, decays over many tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """So many of so many."""

    part: int
    whole: int

    @property
    def rate(self) -> float | None:
        """The share as a number; None of nothing."""
        return self.part / self.whole if self.whole else None


def group_of(recipe: str) -> str:
    """The group of a recipe; "other" for one that no longer exists."""
    return RECIPES[recipe].group if recipe in RECIPES else "other"


def groups_of(rows: Iterable[Row]) -> list[str]:
    """The groups that the rows have, in the order of the recipes' catalogue."""
    found = {group_of(row.recipe) for row in rows}
    return [group for group in (*GROUPS, "other") if group in found]


def kills(rows: Iterable[Row], rule: str) -> Share:
    """Planted bugs with a case that the rule rejects; one per op and dtype.

    As in mutation testing, a test that fails without the bug too has not found it: only
    tensors count that the rule accepts of the fault-free control on the same case.
    """
    rows = list(rows)
    wronged_there = _rejected_of_controls(rows, rule)
    caught: dict[tuple[str, str], bool] = defaultdict(bool)
    for row in rows:
        if row.bug:
            found = _tensors(row, rule) - wronged_there.get(row.case_id, set())
            caught[row.kernel, row.dtype] |= bool(found)
    return Share(part=sum(caught.values()), whole=len(caught))


def shown(rows: Iterable[Row], rule: str) -> Share:
    """Cases on which scancheck finds a bug that the rule finds too, as in `kills`."""
    rows = list(rows)
    wronged_there = _rejected_of_controls(rows, rule)
    red = [row for row in rows if row.bug and row.scancheck and not row.relation]
    found = [_tensors(r, rule) - wronged_there.get(r.case_id, set()) for r in red]
    return Share(part=sum(map(bool, found)), whole=len(red))


def _rejected_of_controls(rows: Iterable[Row], rule: str) -> dict[str, set[str]]:
    """By case, the tensors of the fault-free control that the rule rejects."""
    controls = [row for row in rows if row.kernel.startswith("control.")]
    return {row.case_id: _tensors(row, rule) for row in controls}


def _tensors(row: Row, rule: str) -> set[str]:
    return set(getattr(row, rule).split())


def false_alarms(rows: Iterable[Row], rule: str) -> Share:
    """Cases of correct kernels that the rule rejects.

    Cases on which the declared algorithm leaves the range of its format (RANGE) are
    left out: values are lost there, though not by a fault.
    """
    judged = [row for row in rows if not row.bug and row.verdict != "RANGE"]
    return Share(part=sum(bool(getattr(r, rule)) for r in judged), whole=len(judged))


def wronged(rows: Iterable[Row], rule: str) -> Share:
    """Correct kernels with such a case; one per dtype."""
    alarms: dict[tuple[str, str], bool] = defaultdict(bool)
    for row in rows:
        if not row.bug:
            alarm = row.verdict != "RANGE" and bool(getattr(row, rule))
            alarms[row.kernel, row.dtype] |= alarm
    return Share(part=sum(alarms.values()), whole=len(alarms))


def by_group(
    rows: list[Row], count: Callable[[Iterable[Row], str], Share]
) -> dict[str, dict[str, Share]]:
    """A count of every rule on ordinary data, and on the rows of every group."""
    parts = {f"{ORDINARY} alone": [r for r in rows if r.recipe == ORDINARY]}
    for group in groups_of(rows):
        parts[group] = [r for r in rows if group_of(r.recipe) == group]
    return {
        name: {rule: count(part, rule) for rule in LABELS}
        for name, part in parts.items()
    }


def by_bug(rows: Iterable[Row]) -> dict[str, dict[str, Share]]:
    """How many of a bug's ops and dtypes each rule catches."""
    rows = list(rows)
    controls = [row for row in rows if row.kernel.startswith("control.")]
    of_bug: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.bug:
            of_bug[row.bug].append(row)
    return {
        bug: {rule: kills([*controls, *found], rule) for rule in LABELS}
        for bug, found in sorted(of_bug.items())
    }


def unnamed(rows: Iterable[Row]) -> list[str]:
    """Planted bugs, with their dtype, whose cause scancheck did not name."""
    return sorted({f"{r.kernel} {r.dtype}" for r in rows if r.bug and not r.named})
