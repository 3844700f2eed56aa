"""What to use: the cheapest way to compute that holds, with how often it was seen."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from scancheck.formats import FORMATS
from scancheck.report.ways import (
    Way,
    excess,
    kind_of,
    or_infinite,
    same_kind,
    ways_of,
)
from scancheck.report.words import (
    describe_way,
    plain_number,
    scientific,
)
from scancheck.study.row import Row

# Computing may add as much error as storing the exact answer once has by itself: two
# independent errors of one size are sqrt(2) of it together.
AS_GOOD_AS_STORED = math.sqrt(2.0)
ACCURACIES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)

# Why a way does not reach a goal, or None when it does on all of its cases.
Shortfall = Callable[[Way], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The cheapest way that reaches a goal, and the next cheaper that does not."""

    op: str
    goal: str  # in words
    best: Way | None  # None: nothing in the sweep reaches it
    cheaper: Way | None  # the dearest way below `best`, all of which fail
    why: str  # why `cheaper` fails
    beyond: str  # where the formats and variant of `best` fail on other cases, or ""
    compared: int  # ways that were looked at
    chunks: tuple[int, ...] = ()  # in which `best` reaches the goal
    fails: tuple[Way, ...] = ()  # the worst way of each kind that does not
    holds: tuple[Way, ...] = ()  # all ways that do, cheapest first
    limits: tuple[float, ...] = ()  # the accuracies of the goal, where it is one


def answers(rows: Sequence[Row]) -> list[Answer]:
    """For every op and goal the cheapest chunked way that holds on all its cases.

    A way counts only where each of its cases has more than one chunk: without a carry,
    nothing is known of it. Ways are compared on the cases that all of them ran.
    Neighbouring accuracies that the same way reaches are one goal.
    """
    found = []
    candidates = [way for way in ways_of(rows) if _is_candidate(way)]
    for op in dict.fromkeys(way.op for way in candidates):
        mine, others = _on_common_cases([way for way in candidates if way.op == op])
        stored = {way.storage for way in mine}
        for storage in (name for name in FORMATS if name in stored):
            some = [way for way in mine if way.storage == storage]
            goal = storage_goal(storage)
            found.append(_answer(op, goal, some, others, excess_shortfall))
        found += _accuracy_answers(op, mine, others)
    return found


def _on_common_cases(ways: list[Way]) -> tuple[list[Way], list[Way]]:
    """The ways with the cases that all have, and with the rest, one way a case."""
    common = set.intersection(*({_case(row) for row in way.rows} for way in ways))
    if not common:
        return ways, []
    same = [
        replace(way, rows=tuple(row for row in way.rows if _case(row) in common))
        for way in ways
    ]
    rest = [
        replace(way, rows=(row,))
        for way in ways
        for row in way.rows
        if _case(row) not in common
    ]
    return same, rest


def _case(row: Row) -> tuple[str, int, int]:
    """What a case is, whatever its storage format."""
    return row.recipe, row.T, row.seed


def _is_candidate(way: Way) -> bool:
    return way.algorithm == "chunk" and all(
        or_infinite(way.chunk) < row.T for row in way.rows
    )


def storage_goal(storage: str) -> str:
    """The goal of losing nothing beside what the storage format loses, in words."""
    return f"as good as {storage} storage allows"


def _accuracy_answers(op: str, ways: list[Way], others: list[Way]) -> list[Answer]:
    singles = [
        _answer(
            op,
            scientific(limit),
            ways,
            others,
            partial(_accuracy_shortfall, limit=limit),
        )
        for limit in ACCURACIES
    ]
    found = []
    for _, run in groupby(singles, key=lambda answer: (answer.best, answer.cheaper)):
        some = list(run)
        limits = [answer.goal.replace("1.0e", "1e") for answer in some]
        span = limits[0] if len(limits) == 1 else f"{limits[0]} to {limits[-1]}"
        goal = f"RMS error of at most {span}"
        reached = tuple(float(limit) for limit in limits)
        found.append(replace(some[-1], goal=goal, limits=reached))
    return found


def _answer(
    op: str, goal: str, ways: list[Way], others: list[Way], shortfall: Shortfall
) -> Answer:
    reasons = [shortfall(way) for way in ways]
    index = reasons.index(None) if None in reasons else len(ways)
    best = ways[index] if index < len(ways) else None
    return Answer(
        op=op,
        goal=goal,
        best=best,
        beyond=_beyond(best, others, shortfall) if best is not None else "",
        cheaper=ways[index - 1] if index else None,
        why=reasons[index - 1] or "" if index else "",
        compared=len(ways),
        chunks=_holding_chunks(best, ways, reasons),
        fails=_failing_kinds(ways, reasons),
        holds=tuple(
            way for way, reason in zip(ways, reasons, strict=True) if reason is None
        ),
    )


def _holding_chunks(
    best: Way | None, ways: list[Way], reasons: list[str | None]
) -> tuple[int, ...]:
    """The chunk sizes in which the best formats and variant reach the goal."""
    return tuple(
        sorted(
            way.chunk
            for way, reason in zip(ways, reasons, strict=True)
            if best is not None
            and reason is None
            and way.chunk is not None
            and same_kind(way, best)
        )
    )


def _failing_kinds(ways: list[Way], reasons: list[str | None]) -> tuple[Way, ...]:
    """Of each formats and variant that miss the goal, the worst chunk size."""
    groups: dict[tuple[str, ...], list[Way]] = {}
    for way, reason in zip(ways, reasons, strict=True):
        if reason is not None:
            groups.setdefault(kind_of(way), []).append(way)
    return tuple(
        max(missed, key=lambda way: excess(way.farthest)) for missed in groups.values()
    )


def _beyond(best: Way, others: list[Way], shortfall: Shortfall) -> str:
    """Where the best way's formats and variant fail on cases that not all ways ran."""
    same = [
        way
        for way in others
        if (way.storage, way.compute, way.state, way.variant)
        == (best.storage, best.compute, best.state, best.variant)
    ]
    for way in sorted(same, key=lambda way: -or_infinite(way.worst.rms_rel)):
        if reason := shortfall(way):
            return f"chunk {way.chunk}: {reason}"
    return ""


def excess_shortfall(way: Way) -> str | None:
    """Why the way adds more error than its storage format has, or None."""
    row = way.farthest
    if red := _other_verdict(way):
        return red
    if excess(row) <= AS_GOOD_AS_STORED:
        return None
    return f"{plain_number(excess(row), 2)} times the error of storing on {_place(row)}"


def _accuracy_shortfall(way: Way, limit: float) -> str | None:
    row = way.worst
    if red := _other_verdict(way):
        return red
    if or_infinite(row.rms_rel) <= limit:
        return None
    return f"error {scientific(row.rms_rel)} on {_place(row)}"


def _other_verdict(way: Way) -> str | None:
    """The first case that does not pass, in words."""
    row = next((row for row in way.rows if row.verdict != "PASS"), None)
    return None if row is None else f"{row.verdict} on {_place(row)}"


def _place(row: Row) -> str:
    return f"{row.recipe} ({row.T} tokens)"


def headline(rows: Sequence[Row], storage: str = "bf16") -> str:
    """The answer for one storage format in a sentence or two, with its evidence."""
    ways = [way for way in ways_of(rows) if way.storage == storage]
    found = [a for a in answers(rows) if a.goal == storage_goal(storage)]
    if not found:
        return f"No way to compute with {storage} storage was measured."
    sentences = []
    held = [answer.best for answer in found if answer.best is not None]
    words = list(dict.fromkeys(describe_way(way) for way in held))
    if len(held) == len(found) and len(words) == 1:
        ops = " and ".join(way.op for way in held)
        sentences.append(f"{ops}: {_claim(held, storage)}.")
    else:
        sentences += [
            f"{a.op}: {_claim([a.best], storage)}."
            if a.best
            else f"{a.op}: nothing measured here is {a.goal}."
            for a in found
        ]
    short = [w for w in ways if w.compute == storage and w.variant == "plain"]
    if short:
        worst = max(excess(way.farthest) for way in short)
        sentences.append(
            f"Plain arithmetic in {storage} itself has up to {plain_number(worst, 2)} "
            "times that error."
        )
    return " ".join(sentences)


def _claim(ways: list[Way], storage: str) -> str:
    """What the ways, the same in words, reach on how many cases."""
    rows = [row for way in ways for row in way.rows]
    number = f"all {len(rows)} cases" if len(rows) > 1 else "its one case"
    lengths = sorted({row.T for row in rows})
    span = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    worst = max(or_infinite(row.rms_rel) for row in rows)
    times = max(excess(row) for row in rows)
    return (
        f"{describe_way(ways[0])} is {storage_goal(storage)} in {number} of {span} "
        f"tokens (relative RMS error at most {scientific(worst)}, "
        f"{plain_number(times, 3)} times that of storing the exact answer)"
    )
