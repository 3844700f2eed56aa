"""Faults with a number in them, which is taken from the kernel's own outputs.

A fitted number makes anything look nearer: these come after all other hypotheses.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from scancheck.checks.carry_faults import (
    Fault,
    decayed,
    time_first,
    unchanged,
)
from scancheck.checks.faulty_recurrence import (
    AtEdges,
    Change,
    Outputs,
    run,
    steps_in,
)
from scancheck.checks.oracle import CaseReport
from scancheck.ops.calling import op_of
from scancheck.ops.normal_form import Lowered

# Golden-section steps: each shortens the interval by 0.618, all of them to 2**-23.
SECTIONS = 34
BINADES = 8  # below the largest state, where a limit is looked for
NEARER = 0.7  # of the distance without a limit, at the best of a few limits


def fitted_faults(report: CaseReport, truth: Outputs, chunk: int) -> Iterator[Fault]:
    """A factor on what is carried over edges of chunks of one size, or a limit."""
    for scaling, what in ((scaled, "state"), (decayed, "carried-through part")):
        factor = _carry_factor(report, truth, chunk, scaling)
        if factor is not None:
            yield (
                "carry_decay",
                f"the {what} is scaled by {factor:.4g} at edges of chunks of {chunk}",
                run(report, AtEdges(steps_in(report, chunk), scaling(factor))),
            )
    limit = _clamp_limit(report, chunk)
    if limit is not None:
        yield (
            "state_clamped",
            f"states carried over edges of chunks of {chunk} stay within {limit:.4g}",
            run(report, AtEdges(steps_in(report, chunk), clamped(limit))),
        )


def scaled(factor: float) -> Change:
    """The whole carried state times a factor."""

    def change(system: AtEdges, part: Lowered, state: Any, chunk: int) -> Any:
        return (factor * state[0], *state[1:])

    return change


def clamped(limit: float) -> Change:
    """Every carried value held within a limit on either side of zero."""

    def change(system: AtEdges, part: Lowered, state: Any, chunk: int) -> Any:
        return (np.clip(state[0], -limit, limit), *state[1:])

    return change


def _carry_factor(
    report: CaseReport,
    truth: Outputs,
    chunk: int,
    scaling: Callable[[float], Change],
) -> float | None:
    """The factor that fits the error of the first wrong chunk best."""
    window = _first_wrong_chunk(report, chunk)
    if window is None:
        return None
    name = op_of(report.case).outputs[0].name
    got = time_first(report, name, report.outcome.outputs[name])
    want = time_first(report, name, truth[name])
    without = run(report, AtEdges(steps_in(report, chunk), scaling(0.0)))[name]
    bare = time_first(report, name, without)
    carried = (want - bare)[window].ravel()
    error = (got - want)[window].ravel()
    usable = np.isfinite(error) & np.isfinite(carried) & (carried != 0.0)
    if not usable.any():
        return None
    carried, error = carried[usable], error[usable]
    factor = 1.0 + float(carried @ error) / float(carried @ carried)
    return factor if abs(factor - 1.0) > 1e-5 and np.isfinite(factor) else None


def _first_wrong_chunk(report: CaseReport, chunk: int) -> slice | None:
    """The tokens of the first wrong chunk; None where that has no edge before it."""
    name = op_of(report.case).outputs[0].name
    if name not in report.metrics:
        return None
    wrong = time_first(report, name, report.metrics[name].wrong)
    if not wrong.any():  # where it is empty too
        return None
    tokens = wrong.reshape(wrong.shape[0], -1).any(axis=1)
    first = int(np.argmax(tokens)) // chunk
    if first == 0:
        return None
    return slice(first * chunk, (first + 1) * chunk)


def _clamp_limit(report: CaseReport, chunk: int) -> float | None:
    """The limit under which the first wrong chunk is nearest to what the kernel gave.

    A tighter clamp only takes away more, so the distance falls to its least value and
    rises again.
    """
    window = _first_wrong_chunk(report, chunk)
    if window is None:
        return None
    plain = AtEdges(steps_in(report, chunk), unchanged)
    run(report, plain)
    edges = [np.abs(state[0]) for state in plain.kept[1:]]
    high = max((float(np.max(e, initial=0.0)) for e in edges), default=0.0)
    if not np.isfinite(high) or high == 0.0:
        return None
    name = op_of(report.case).outputs[0].name
    got = time_first(report, name, report.outcome.outputs[name])[window]

    def distance(limit: float) -> float:
        other = run(report, AtEdges(steps_in(report, chunk), clamped(limit)))[name]
        off = np.abs(got - time_first(report, name, other)[window])
        return float(off[np.isfinite(off)].sum())

    # A few limits, a binade apart, tell whether a search is worth its runs.
    grid = [high * 2.0**-k for k in range(BINADES)]
    at_grid = [distance(limit) for limit in grid]
    nearest = int(np.argmin(at_grid))
    if at_grid[nearest] > NEARER * at_grid[0]:
        return None
    low = grid[nearest + 1] if nearest + 1 < BINADES else 0.0
    return _least(distance, low, grid[max(0, nearest - 1)])


def _least(distance: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that falls and rises again is least (golden section)."""
    golden = (5.0**0.5 - 1.0) / 2.0
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = distance(left), distance(right)
    for _ in range(SECTIONS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = distance(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = distance(right)
    return (low + high) / 2.0
