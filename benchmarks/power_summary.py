"""Kill rates and false alarms of each rule, counted from the rows."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from power_rows import Row
from power_rules import LABELS

# Recipes that carry one kind of hazard; a recipe that is not here is its own group.
GROUPS = {
    "ordinary data": ("gaussian_slow", "mixed_time_scales"),
    "exact integers": ("exact_dyadic",),
    "chunk edges, resets": ("impulse_at_chunk_edge", "exact_reset"),
    "decay near 1": ("decay_near_one", "unit_decay"),
    "cancellation": ("telescoping_cancellation",),
    "strong decay": ("decay_near_zero",),
    "softplus tails": ("softplus_tails",),
    "range": ("subnormal_state", "dip_and_regrow", "dip_out_of_range"),
    "signs, growth": ("negative_decay", "growth"),
}
_GROUP_OF = {recipe: group for group, names in GROUPS.items() for recipe in names}


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
    """The group of a recipe."""
    return _GROUP_OF.get(recipe, recipe)


def groups_of(rows: Iterable[Row]) -> list[str]:
    """The groups that the rows have, in the order of GROUPS, then by name."""
    found = {group_of(row.recipe) for row in rows}
    return [g for g in GROUPS if g in found] + sorted(found - set(GROUPS))


def kills(rows: Iterable[Row], rule: str) -> Share:
    """Planted bugs with a case that the rule rejects; one per op and dtype."""
    caught: dict[tuple[str, str], bool] = defaultdict(bool)
    for row in rows:
        if row.bug:
            caught[row.kernel, row.dtype] |= bool(getattr(row, rule))
    return Share(part=sum(caught.values()), whole=len(caught))


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
    """A count of every rule on the rows of every group."""
    return {
        group: {
            rule: count([r for r in rows if group_of(r.recipe) == group], rule)
            for rule in LABELS
        }
        for group in groups_of(rows)
    }


def by_bug(rows: Iterable[Row]) -> dict[str, dict[str, Share]]:
    """How many of a bug's ops and dtypes each rule catches."""
    of_bug: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.bug:
            of_bug[row.bug].append(row)
    return {
        bug: {rule: kills(found, rule) for rule in LABELS}
        for bug, found in sorted(of_bug.items())
    }


def unnamed(rows: Iterable[Row]) -> list[str]:
    """Planted bugs, with their dtype, whose cause scancheck did not name."""
    return sorted({f"{r.kernel} {r.dtype}" for r in rows if r.bug and not r.named})
