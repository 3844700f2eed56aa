"""Cases in which several sequences come in one call, made from plain cases.

Packed sequences (numerics section 3, families 4, 19 and 24): of no token, of one, of
about a chunk, and boundaries inside a chunk. Padded rows: none, one and all of their
tokens left. Reversed: a partial chunk at either end.
"""

from collections.abc import Iterator
from itertools import accumulate, cycle
from typing import Any

from scancheck.case import Case, make_case
from scancheck.ops import op_named

LONGEST_CHUNK = 64  # lengths aim at edges of chunks up to this; several sequences each
PLAIN = "gaussian_slow"  # the recipe of the first calls of each kind


def packings(chunk: int) -> tuple[tuple[int, ...], ...]:
    """Lengths of the sequences of a call."""
    return (
        (chunk - 1, chunk, chunk + 1, 0, 1, 0),
        (0, 3, chunk + 2, 0, 1, 2 * chunk + 1),
        (1, 1, 1, 1, 1),
        (chunk + 3,),
        (0, 0),
    )


def paddings(chunk: int) -> tuple[tuple[int, tuple[int, ...], bool], ...]:
    """Tokens of a row, how many of them are none of padding, and its side."""
    longest = chunk + 3
    return (
        (longest, (longest, chunk - 1, 1, 0), False),
        (longest, (3, longest, 0, chunk), True),
        (longest, (longest, longest), False),
    )


def call_cases(
    cases: list[Case], accepts: frozenset[str], *, profile: str, chunk: int
) -> list[Case]:
    """Calls of several sequences, each kind that is accepted, made from plain cases.

    In the full profile every recipe meets one of each kind.
    """
    if not cases:
        return []
    aim = max(2, min(chunk, LONGEST_CHUNK))
    found = []
    for name, kinds in (
        ("cu_seqlens", list(_packed(cases, aim, "reverse" in accepts))),
        ("reverse", list(_reversed(cases, aim))),
        ("attention_mask", list(_padded(cases, aim))),
    ):
        if name not in accepts:
            continue
        bases = _bases(cases)
        count = len(kinds) if profile == "quick" else len(kinds) + len(bases)
        for index, kind in zip(range(count), cycle(kinds), strict=False):
            # The first two of each kind are plain, so that what fails is the calling.
            base = bases[0 if index < 2 else index % len(bases)]
            state = op_named(base.op).state
            options = {state: state in accepts and index % 3 != 2}
            found.append(_case(base, kind, options))
    return found


Kind = tuple[dict[str, int], dict[str, Any]]  # sizes and options of a call


def _packed(cases: list[Case], chunk: int, reverse: bool) -> Iterator[Kind]:
    time = op_named(cases[0].op).time_axis
    for index, lengths in enumerate(packings(chunk)):
        options: dict[str, Any] = {"cu_seqlens": (0, *accumulate(lengths))}
        yield {"B": 1, time: sum(lengths)}, options
        if reverse and index == 0:
            yield {"B": 1, time: sum(lengths)}, options | {"reverse": True}


def _reversed(cases: list[Case], chunk: int) -> Iterator[Kind]:
    time = op_named(cases[0].op).time_axis
    for steps in (chunk + 1, 2 * chunk + 3, 1):
        yield {time: steps}, {"reverse": True}


def _padded(cases: list[Case], chunk: int) -> Iterator[Kind]:
    time = op_named(cases[0].op).time_axis
    for steps, lengths, left in paddings(chunk):
        options: dict[str, Any] = {"lengths": lengths}
        if left:
            options["pad_left"] = True
        yield {"B": len(lengths), time: steps}, options


def _bases(cases: list[Case]) -> list[Case]:
    """The first case of each recipe and form, the plain recipe in front."""
    firsts: dict[tuple[str, Any], Case] = {}
    for case in cases:
        firsts.setdefault((case.recipe, dict(case.options).get("form")), case)
    return sorted(firsts.values(), key=lambda case: case.recipe != PLAIN)


def _case(base: Case, kind: Kind, options: dict[str, Any]) -> Case:
    sizes, calling = kind
    return make_case(
        base.op,
        dict(base.sizes) | sizes,
        dtype=base.dtype,
        recipe=base.recipe,
        seed=base.seed,
        options=dict(base.options) | options | calling,
    )
