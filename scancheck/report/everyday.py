"""The answer outright: format and chunk size for each everyday gate and length."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scancheck.recipes.regimes import REGIMES
from scancheck.report.advice import (
    ACCURACIES,
    AS_GOOD_AS_STORED,
    Answer,
    answers,
    storage_goal,
)
from scancheck.report.ways import Way, excess, or_infinite, ways_of
from scancheck.report.words import (
    instruct,
    kind_label,
    listed,
    plain_number,
    scientific,
    tokens,
)
from scancheck.study.row import Row

# What is tried first as the format to store in: the cheapest that holds is the answer.
PREFERRED = ("bf16", "fp16", "fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Everyday:
    """One gate at the lengths and for the ops that have the same answer."""

    gate: str
    lengths: tuple[int, ...]
    ops: tuple[str, ...]
    use: str  # formats, variant and chunk; empty: nothing measured holds
    goal: str  # which `use` reaches
    chunks: tuple[int, ...]  # sizes in which it does
    error: float | None  # worst relative RMS error of `use`
    fails: dict[str, str]  # formats and variants that do not reach it, and how far off
    cases: int  # of the way that is advised
    values: int  # compared with the reference in them
    compared: int  # ways


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracies:
    """The cheapest way for every accuracy, at one gate, length and op."""

    gate: str
    length: int
    op: str
    ways: tuple[str, ...]  # in the order of ACCURACIES, then what fp32 storage allows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """One gate, length and op with its answers."""

    gate: str
    length: int
    op: str
    answers: tuple[Answer, ...]

    @property
    def chosen(self) -> Answer:
        """The answer for the first format that holds at all, else any."""
        goals = [storage_goal(storage) for storage in PREFERRED]
        held = [a for goal in goals for a in self.answers if a.goal == goal and a.best]
        return held[0] if held else self.answers[0]


def everyday(rows: Sequence[Row]) -> list[Everyday]:
    """The answers for every gate, those that agree put together."""
    groups: dict[tuple[object, ...], list[_Place]] = {}
    for place in _places(rows):
        answer = place.chosen
        key = (place.gate, _use(answer), answer.goal, answer.chunks)
        groups.setdefault(key, []).append(place)
    return [_line(found) for found in groups.values()]


def _places(rows: Sequence[Row]) -> Iterator[_Place]:
    for name, regime in REGIMES.items():
        mine = [row for row in rows if row.recipe == name and row.kind == "case"]
        for length, op in sorted({(row.T, row.op) for row in mine}):
            here = [row for row in mine if (row.T, row.op) == (length, op)]
            found = answers(here)
            if found:
                yield _Place(
                    gate=regime.title, length=length, op=op, answers=tuple(found)
                )


def _use(answer: Answer) -> str:
    return instruct(answer.best) if answer.best else ""


def _line(places: list[_Place]) -> Everyday:
    found = [place.chosen for place in places]
    best = [answer.best for answer in found if answer.best]
    errors = [w.worst.rms_rel for w in best if w.worst.rms_rel is not None]
    return Everyday(
        gate=places[0].gate,
        lengths=tuple(sorted({place.length for place in places})),
        ops=tuple(dict.fromkeys(place.op for place in places)),
        use=_use(found[0]),
        goal=found[0].goal,
        chunks=found[0].chunks,
        error=max(errors, default=None),
        fails=_fails(found),
        cases=sum(len(way.rows) for way in best),
        values=sum(row.values for way in best for row in way.rows),
        compared=max(answer.compared for answer in found),
    )


def _fails(found: list[Answer]) -> dict[str, str]:
    """By formats and variant: the verdict that is no pass, or the worst error."""
    worst: dict[str, Way] = {}
    for answer in found:
        for way in answer.fails:
            label = kind_label(way)
            before = worst.get(label, way)
            worst[label] = max((before, way), key=lambda w: excess(w.farthest))
    return {
        label: next(
            (row.verdict for row in way.rows if row.verdict != "PASS"),
            f"{plain_number(excess(way.farthest), 2)} times storing",
        )
        for label, way in worst.items()
    }


def accuracies(rows: Sequence[Row]) -> list[Accuracies]:
    """The cheapest way for every accuracy, one line a gate, length and op."""
    lines = []
    for place in _places(rows):
        by_limit = {
            limit: answer for answer in place.answers for limit in answer.limits
        }
        finest = [a for a in place.answers if a.goal == storage_goal("fp32")]
        chosen = [*(by_limit.get(limit) for limit in ACCURACIES), *finest[:1]]
        lines.append(
            Accuracies(
                gate=place.gate,
                length=place.length,
                op=place.op,
                ways=tuple(_short(answer) for answer in chosen),
            )
        )
    return lines


def _short(answer: Answer | None) -> str:
    if answer is None or answer.best is None:
        return "nothing measured"
    return f"{kind_label(answer.best)}, chunk {answer.best.chunk}"


def sentences(rows: Sequence[Row]) -> list[str]:
    """The answers in words: one choice for all, what it depends on, what breaks."""
    places = list(_places(rows))
    if not places:
        return []
    groups: dict[tuple[str, str], list[_Place]] = {}
    for place in places:
        key = (_use(place.chosen), place.chosen.goal)
        groups.setdefault(key, []).append(place)
    told = [_one_choice(places)]
    if len(groups) > 1:
        told += [_sentence(found, places) for found in groups.values()]
    return [text for text in (*told, _finer(rows, places), _breaks(rows)) if text]


def _one_choice(places: list[_Place]) -> str:
    """The cheapest way that is right for every gate, length and op, or nothing."""
    for storage in PREFERRED:
        goal = storage_goal(storage)
        held = [
            [instruct(way) for way in answer.holds]
            for place in places
            for answer in place.answers
            if answer.goal == goal
        ]
        if len(held) < len(places):
            continue
        common = [way for way in held[0] if all(way in ways for ways in held)]
        if common:
            gates = listed(dict.fromkeys(place.gate for place in places))
            lengths = listed(map(tokens, sorted({place.length for place in places})))
            ops = listed(dict.fromkeys(place.op for place in places))
            return (
                f"One choice for all: {common[0]}. That is {goal} for {gates}, at "
                f"{lengths} tokens, in {ops}."
            )
    return ""


def _sentence(places: list[_Place], everything: list[_Place]) -> str:
    """What is cheapest where, for the places that share an answer."""
    spans: dict[tuple[tuple[str, tuple[int, ...]], ...], list[str]] = {}
    for gate in dict.fromkeys(place.gate for place in places):
        spans.setdefault(_span(places, gate), []).append(gate)
    where = "; ".join(
        listed(gates) + _span_words(span, _span(everything, gates[0]))
        for span, gates in spans.items()
    )
    where = where[:1].upper() + where[1:]
    answer = places[0].chosen
    best = [place.chosen.best for place in places if place.chosen.best]
    if not best:
        return f"{where}: nothing measured here is {answer.goal}."
    errors = [way.worst.rms_rel for way in best if way.worst.rms_rel is not None]
    return (
        f"{where}: cheapest is to {_use(answer)}, {answer.goal} (RMS error at most "
        f"{scientific(max(errors, default=None))})."
    )


def _span(places: list[_Place], gate: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """For each op the lengths at which a gate is among the places."""
    found: dict[str, list[int]] = {}
    for place in places:
        if place.gate == gate:
            found.setdefault(place.op, []).append(place.length)
    return tuple((op, tuple(sorted(lengths))) for op, lengths in sorted(found.items()))


def _span_words(
    span: tuple[tuple[str, tuple[int, ...]], ...],
    whole: tuple[tuple[str, tuple[int, ...]], ...],
) -> str:
    if span == whole:
        return ""
    whole_of = dict(whole)
    told = [
        op
        if lengths == whole_of.get(op)
        else f"{op} at {listed(map(tokens, lengths))} tokens"
        for op, lengths in span
    ]
    return f" in {listed(told)}"


def _finer(rows: Sequence[Row], places: list[_Place]) -> str:
    """What the wider formats have at worst, in fp32 arithmetic and the same chunks."""
    best = [place.chosen.best for place in places if place.chosen.best]
    if not best:
        return ""
    errors: dict[str, list[float]] = {}
    mine = [row for row in rows if row.recipe in REGIMES]
    for way in ways_of(mine):
        wide = way.compute == way.state == "fp32" and way.storage != best[0].storage
        finest = way.storage == "fp32" and way.variant == "full"
        shown = way.variant == "plain" or finest
        if wide and shown and way.chunk == best[0].chunk:
            errors.setdefault(kind_label(way), []).append(
                or_infinite(way.worst.rms_rel)
            )
    told = [
        f"{label} {scientific(max(found))}"
        for label, found in errors.items()
        if max(found) < min(or_infinite(way.worst.rms_rel) for way in best)
    ]
    if not told:
        return ""
    return (
        "Where that is not enough, with fp32 arithmetic and state in the same chunks "
        f"the RMS error is at most: {'; '.join(told)}."
    )


def _breaks(rows: Sequence[Row]) -> str:
    """How far short arithmetic and a short state are off at worst, and where."""
    worst: dict[str, Row] = {}
    mine = [row for row in rows if row.recipe in REGIMES]
    for way in ways_of(mine):
        if way.storage != PREFERRED[0] or way.variant != "plain":
            continue
        if way.state != way.storage:
            continue
        short = "arithmetic" if way.compute == way.storage else "state"
        farthest = max((worst.get(short, way.farthest), way.farthest), key=excess)
        worst[short] = farthest
    told = [
        f"{row.storage} {short} has up to {plain_number(excess(row), 2)} times the "
        f"error of storing ({REGIMES[row.recipe].title}, {row.op}, "
        f"{tokens(row.T)} tokens)"
        for short, row in worst.items()
        if excess(row) > AS_GOOD_AS_STORED
    ]
    return f"What breaks: {listed(told)}." if told else ""
