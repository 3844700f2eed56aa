"""The answer outright: format and chunk size for each everyday gate and length."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scancheck.formats import FORMATS
from scancheck.recipes.regimes import REGIMES
from scancheck.report.advice import (
    AS_GOOD_AS_STORED,
    Answer,
    answers,
    storage_goal,
)
from scancheck.report.ways import excess, ways_of
from scancheck.report.words import (
    describe_way,
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
    more: tuple[tuple[str, str], ...]  # accuracy, cheapest way that has it
    fails: tuple[str, ...]  # what does not reach the goal, and why
    cases: int  # of the way that is advised
    values: int  # compared with the reference in them
    compared: int  # ways
    holds: dict[str, tuple[str, ...]]  # by storage format all ways that lose nothing


def everyday(rows: Sequence[Row]) -> list[Everyday]:
    """The answers for every gate, those that agree put together."""
    groups: dict[tuple[object, ...], list[Everyday]] = {}
    for line in _single(rows):
        key = (line.gate, line.use, line.goal, line.chunks, line.more)
        groups.setdefault(key, []).append(line)
    return [_together(found) for found in groups.values()]


def _single(rows: Sequence[Row]) -> Iterator[Everyday]:
    """One line a gate, length and op."""
    for name, regime in REGIMES.items():
        mine = [row for row in rows if row.recipe == name and row.kind == "case"]
        places = sorted({(row.T, row.op) for row in mine})
        for length, op in places:
            here = [row for row in mine if (row.T, row.op) == (length, op)]
            found = answers(here)
            if found:
                yield _line(regime.title, length, op, found)


def _line(gate: str, length: int, op: str, found: list[Answer]) -> Everyday:
    by_goal = {answer.goal: answer for answer in found}
    stored = [by_goal.get(storage_goal(storage)) for storage in PREFERRED]
    held = [answer for answer in stored if answer is not None and answer.best]
    chosen = held[0] if held else found[0]
    best = chosen.best
    return Everyday(
        gate=gate,
        lengths=(length,),
        ops=(op,),
        use=describe_way(best) if best else "",
        goal=chosen.goal,
        chunks=chosen.chunks,
        error=best.worst.rms_rel if best else None,
        more=tuple(_more(found)),
        fails=chosen.fails,
        cases=len(best.rows) if best else 0,
        values=sum(row.values for row in best.rows) if best else 0,
        compared=chosen.compared,
        holds={
            storage: answer.holds
            for storage, answer in zip(PREFERRED, stored, strict=True)
            if answer is not None
        },
    )


def _more(found: list[Answer]) -> Iterator[tuple[str, str]]:
    """For every accuracy the cheapest way, and for fp32 the one that loses nothing."""
    for answer in found:
        is_accuracy = answer.goal not in {storage_goal(name) for name in FORMATS}
        if is_accuracy or answer.goal == storage_goal("fp32"):
            goal = answer.goal.removeprefix("RMS error of at most ")
            best = answer.best
            yield goal, describe_way(best) if best else "nothing measured"


def _together(lines: list[Everyday]) -> Everyday:
    first = lines[0]
    errors = [line.error for line in lines if line.error is not None]
    return Everyday(
        gate=first.gate,
        lengths=tuple(dict.fromkeys(n for line in lines for n in line.lengths)),
        ops=tuple(dict.fromkeys(op for line in lines for op in line.ops)),
        use=first.use,
        goal=first.goal,
        chunks=first.chunks,
        error=max(errors, default=None),
        more=first.more,
        fails=max(lines, key=lambda line: len(line.fails)).fails,
        cases=sum(line.cases for line in lines),
        values=sum(line.values for line in lines),
        compared=first.compared,
        holds={},
    )


def sentences(rows: Sequence[Row]) -> list[str]:
    """The answers in words: one choice for all, what it depends on, what breaks."""
    lines = list(_single(rows))
    if not lines:
        return []
    groups: dict[tuple[str, str], list[Everyday]] = {}
    for line in lines:
        groups.setdefault((line.use, line.goal), []).append(line)
    told = [_one_choice(lines)]
    if len(groups) > 1:
        told += [_sentence(found, lines) for found in groups.values()]
    return [text for text in (*told, _breaks(rows)) if text]


def _one_choice(lines: list[Everyday]) -> str:
    """The cheapest way that is right for every gate, length and op, or nothing."""
    for storage in PREFERRED:
        held = [line.holds.get(storage, ()) for line in lines]
        common = [way for way in held[0] if all(way in ways for ways in held)]
        if common:
            gates = listed(dict.fromkeys(line.gate for line in lines))
            lengths = listed(map(tokens, sorted({n for x in lines for n in x.lengths})))
            ops = listed(dict.fromkeys(op for line in lines for op in line.ops))
            return (
                f"One choice for all: {common[0]}. It is {storage_goal(storage)} for "
                f"{gates}, at {lengths} tokens, in {ops}."
            )
    return ""


def _sentence(lines: list[Everyday], everything: list[Everyday]) -> str:
    """What is cheapest where, for the lines that share an answer."""
    spans: dict[tuple[tuple[str, tuple[int, ...]], ...], list[str]] = {}
    for gate in dict.fromkeys(line.gate for line in lines):
        spans.setdefault(_span(lines, gate), []).append(gate)
    where = "; ".join(
        listed(gates) + _span_words(span, _span(everything, gates[0]))
        for span, gates in spans.items()
    )
    first = lines[0]
    if not first.use:
        return f"{_capital(where)}: nothing measured here is {first.goal}."
    errors = [line.error for line in lines if line.error is not None]
    return (
        f"{_capital(where)}: the cheapest is {first.use}, {first.goal} "
        f"(RMS error at most {scientific(max(errors, default=None))})."
    )


def _span(lines: list[Everyday], gate: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """For each op the lengths of a gate's lines."""
    found: dict[str, list[int]] = {}
    for line in lines:
        if line.gate == gate:
            found.setdefault(line.ops[0], []).extend(line.lengths)
    return tuple((op, tuple(sorted(lengths))) for op, lengths in sorted(found.items()))


def _span_words(
    span: tuple[tuple[str, tuple[int, ...]], ...],
    whole: tuple[tuple[str, tuple[int, ...]], ...],
) -> str:
    if span == whole:
        return ""
    by_lengths: dict[tuple[int, ...], list[str]] = {}
    for op, lengths in span:
        by_lengths.setdefault(lengths, []).append(op)
    told = [
        f"{listed(ops)} at {listed(map(tokens, lengths))} tokens"
        for lengths, ops in by_lengths.items()
    ]
    return f" ({'; '.join(told)})"


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


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def chunk_words(line: Everyday) -> str:
    """Which chunk sizes hold."""
    return f"chunks of {listed(line.chunks)} hold" if line.chunks else ""
