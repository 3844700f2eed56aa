"""Calls of several sequences, drawn for trials: cuts, directions and padding."""

from collections.abc import Callable, Sequence
from typing import Any

from scancheck.ops.calling import ARGUMENTS

CALL_IN = 3  # one trial in so many of a kernel that can be called so
TURNED_IN = 4  # one packed call in so many is reversed too
MOST_SEQUENCES = 6

# One of the numbers of one of several kinds, under a name of its own.
Choose = Callable[[str, Sequence[Sequence[int]]], int]
Call = tuple[dict[str, int], dict[str, Any]]  # sizes and options that it sets


def drawn_call(
    choose: Choose,
    accepts: frozenset[str],
    *,
    batch: int,
    steps: int,
    chunk: int,
) -> Call:
    """Sizes and options of one of the ways that are accepted, often none."""
    ways = [name for name in ARGUMENTS if name in accepts]
    if not ways or choose("call", [range(CALL_IN)]):
        return {}, {}
    match ways[choose("way", [range(len(ways))])]:
        case "cu_seqlens":
            options: dict[str, Any] = {"cu_seqlens": _offsets(choose, steps, chunk)}
            if "reverse" in ways and not choose("turned", [range(TURNED_IN)]):
                options["reverse"] = True
            return {"B": 1}, options
        case "reverse":
            return {}, {"reverse": True}
        case _:
            return {}, _padding(choose, batch, steps, chunk)


def _offsets(choose: Choose, steps: int, chunk: int) -> tuple[int, ...]:
    """Sequences of any length, of about a chunk, of one token and of none."""
    count = choose("sequences", [range(1, MOST_SEQUENCES + 1)])
    cuts = [0]
    for number in range(1, count):
        near = [cuts[-1], min(cuts[-1] + 1, steps)]
        kinds = [near, _edges(steps, chunk), range(steps + 1)]
        cuts.append(choose(f"cut {number}", kinds))
    return (*sorted(cuts), steps)


def _padding(choose: Choose, batch: int, steps: int, chunk: int) -> dict[str, Any]:
    """Lengths of rows, and the side of what fills them up."""
    kinds = [[steps], [0, min(1, steps)], _edges(steps, chunk), range(steps + 1)]
    lengths = tuple(choose(f"length {row}", kinds) for row in range(batch))
    left = choose("side", [range(2)])
    return {"lengths": lengths, **({"pad_left": True} if left else {})}


def _edges(steps: int, chunk: int) -> list[int]:
    """Tokens around the edges of chunks, those of the first four."""
    edges = [k * chunk + tail for k in (1, 2, 3, 4) for tail in (-1, 0, 1)]
    return [n for n in edges if 0 <= n <= steps] or [steps]
