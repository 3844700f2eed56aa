"""Faults at the edges of chunks, each with the outputs that it would give."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.checks.agreement import FloatArray
from scancheck.checks.faulty_recurrence import (
    AtEdges,
    Change,
    OtherDecays,
    Outputs,
    SilentTail,
    SwappedCombine,
    run,
    scanned,
    spans,
    steps_in,
)
from scancheck.checks.oracle import CaseReport
from scancheck.formats import BF16, FP16, Format, round_array
from scancheck.ops.calling import op_of
from scancheck.ops.normal_form import Lowered, spec_of, state_inputs
from scancheck.oracles.fp64 import Fp64System

Fault = tuple[str, str, Outputs]  # key of diagnosis.CAUSES, detail, outputs
SHORT_SUMS = (BF16, FP16)  # formats that a running sum of log decays may be kept in


def faults_at_edges(report: CaseReport, truth: Outputs, chunk: int) -> Iterator[Fault]:
    """Faults at the edges of chunks of one size, and inside each chunk."""
    steps = steps_in(report, chunk)
    plain = AtEdges(steps, unchanged)
    run(report, plain)
    named: tuple[tuple[str, str, Any], ...] = (
        (
            "carry_index",
            f"each chunk of {chunk} starts from the carry into the chunk before it",
            AtEdges(steps, _late(plain.kept)),
        ),
        (
            "carry_total",
            f"the carry into a chunk of {chunk} is formed with that chunk's own total",
            AtEdges(steps, _own_total),
        ),
        (
            "carry_dropped",
            f"no state is carried across edges of chunks of {chunk}",
            AtEdges(steps, _dropped),
        ),
        (
            "carry_forgets",
            f"the carry holds the last chunk of {chunk} and nothing before it",
            AtEdges(steps, decayed(0.0)),
        ),
        (
            "carry_undecayed",
            f"what enters a chunk of {chunk} enters the next one undecayed",
            AtEdges(steps, _undecayed),
        ),
        (
            "edge_decay",
            f"the first token of each chunk of {chunk} does not decay the past",
            OtherDecays(_first_undecayed(steps)),
        ),
        (
            "gate_shift",
            f"inside chunks of {chunk} each token decays by the gate before its own",
            OtherDecays(_exclusive(steps)),
        ),
        (
            "swapped_combine",
            f"inside chunks of {chunk} the combine takes its operands in reverse",
            SwappedCombine(steps),
        ),
    )
    for cause, detail, system in named:
        yield cause, detail, run(report, system)
    yield from _short_sums(report, chunk, steps)
    if op_of(report.case).state in report.inputs.tensors:
        without = run(report, Fp64System(), without_state(report))
        yield (
            "initial_state",
            f"the initial state has no influence after the first chunk of {chunk}",
            _after(report, truth, without, chunk),
        )
    yield (
        "partial_chunk",
        f"the last, partial chunk of {chunk} is left at zero",
        run(report, SilentTail(steps)),
    )
    yield from _appended(report, truth, chunk)


def _dropped(system: AtEdges, part: Lowered, state: Any, chunk: int) -> Any:
    return tuple(np.zeros_like(array) for array in state)


def unchanged(system: AtEdges, part: Lowered, state: Any, chunk: int) -> Any:
    """The carried state as it should be."""
    return state


def _late(carries: list[Any]) -> Change:
    """The true carry of the edge before, in place of the edge's own."""

    def change(system: AtEdges, part: Lowered, state: Any, chunk: int) -> Any:
        return carries[chunk - 1]

    return change


def _own_total(system: AtEdges, part: Lowered, state: Any, chunk: int) -> Any:
    """The chunk's own decay and sum, applied to the carry of the chunk before."""
    after = scanned(part, system.kept[chunk - 1])
    system.kept[chunk] = after
    return after


def decayed(factor: float) -> Change:
    """What the chunk before the edge carried through, times a factor."""

    def change(system: AtEdges, part: Lowered, state: Any, chunk: int) -> Any:
        local = _local(system, state)
        return (local + factor * (state[0] - local), *state[1:])

    return change


def _undecayed(system: AtEdges, part: Lowered, state: Any, chunk: int) -> Any:
    """What entered the chunk before the edge, added to what that chunk made."""
    carried = _local(system, state) + system.kept[chunk - 1][0]
    system.kept[chunk] = (carried, *state[1:])
    return system.kept[chunk]


def _local(system: AtEdges, state: Any) -> Any:
    """What the chunk before the edge made from a zero state."""
    local = tuple(np.zeros_like(array) for array in state)
    for piece in system.parts:
        local = scanned(piece, local)
    return local[0]


def _first_undecayed(chunk: int) -> Callable[[Lowered, int], FloatArray]:
    def change(lowered: Lowered, start: int) -> FloatArray:
        w = lowered.w.value.copy()
        w[:, _edge_steps(w, start, chunk)] = 1.0
        return np.asarray(w)

    return change


def _exclusive(chunk: int) -> Callable[[Lowered, int], FloatArray]:
    def change(lowered: Lowered, start: int) -> FloatArray:
        w = lowered.w.value
        before = np.concatenate([np.ones_like(w[:, :1]), w[:, :-1]], 1)
        before[:, _edge_steps(w, start, chunk)] = 1.0
        return np.asarray(before)

    return change


def _short_sums(report: CaseReport, chunk: int, steps: int) -> Iterator[Fault]:
    """Sums of log decays since the chunk's first token, kept in a short format.

    exp(c_t - c_j) with rounded sums c telescopes: it is the same recurrence with
    decays exp(c_t - c_{t-1}).
    """
    for fmt in SHORT_SUMS:
        known: list[bool] = []

        def change(
            lowered: Lowered,
            start: int,
            fmt: Format = fmt,
            known: list[bool] = known,
        ) -> FloatArray:
            known.append(lowered.log_w is not None)
            w = lowered.w.value
            return _by_rounded_sums(lowered, start, steps, fmt) if known[-1] else w

        outputs = run(report, OtherDecays(change))
        if any(known):
            detail = f"sums of log decays over chunks of {chunk} are kept in {fmt.name}"
            yield "short_gate_sum", detail, outputs


def _by_rounded_sums(
    lowered: Lowered, start: int, chunk: int, fmt: Format
) -> FloatArray:
    """The decays that differences of rounded sums stand for."""
    log_w, pieces = lowered.log_w.value, []
    for first, last in spans(lowered, start, chunk):
        sums = round_array(fmt, np.cumsum(log_w[:, first:last], axis=1))
        pieces.append(np.diff(sums, axis=1, prepend=0.0))
    return np.exp(np.concatenate(pieces, 1))


def _edge_steps(w: FloatArray, start: int, chunk: int) -> NDArray[np.intp]:
    """Indices of the steps of a tile that are first in their chunk."""
    return np.flatnonzero((start + np.arange(w.shape[1])) % chunk == 0)


def without_state(report: CaseReport) -> dict[str, FloatArray]:
    """The case's tensors with an initial state of zero."""
    tensors = dict(report.inputs.tensors)
    names = [n for n in state_inputs(op_of(report.case)) if n in tensors]
    return tensors | {name: np.zeros_like(tensors[name]) for name in names}


def _appended(report: CaseReport, truth: Outputs, chunk: int) -> Iterator[Fault]:
    """Rows behind the last one of a partial chunk that are read as tokens.

    Only the final state can be wrong; the sequence output ends before them.
    """
    op = op_of(report.case)
    first = op.outputs[0].name
    missing = -dict(report.case.sizes)[op.time_axis] % chunk
    if missing == 0:
        return
    for cause, detail, filled in (
        ("padding", "zeros that fill up the last chunk are taken for tokens", _zeros),
        ("row_overrun", "the last chunk reads on into the next row", _next_row),
    ):
        tensors = {}
        for name, values in report.inputs.tensors.items():
            axes = spec_of(op, name, values.ndim).axes
            tensors[name] = values
            if op.time_axis in axes:
                tensors[name] = filled(values, axes.index(op.time_axis), missing)
        outputs = run(report, Fp64System(), tensors)
        yield cause, detail, outputs | {first: truth[first]}


def _zeros(values: FloatArray, axis: int, missing: int) -> FloatArray:
    margin = [(0, 0)] * values.ndim
    margin[axis] = (0, missing)
    return np.pad(values, margin)


def _next_row(values: FloatArray, axis: int, missing: int) -> FloatArray:
    following = np.roll(values, -1, axis=0)
    start = np.take(following, np.arange(min(missing, values.shape[axis])), axis)
    return np.concatenate([values, start], axis)


def time_first(report: CaseReport, name: str, values: NDArray[Any]) -> NDArray[Any]:
    """The sequence output with its time axis first."""
    op = op_of(report.case)
    return np.moveaxis(values, op.outputs[0].axes.index(op.time_axis), 0)


def _after(report: CaseReport, truth: Outputs, other: Outputs, chunk: int) -> Outputs:
    """The truth in the first chunk, another run's outputs after it."""
    op = op_of(report.case)
    first = op.outputs[0]
    axis = first.axes.index(op.time_axis)
    steps = np.arange(truth[first.name].shape[axis])
    shape = [1] * truth[first.name].ndim
    shape[axis] = -1
    early = (steps < chunk).reshape(shape)
    mixed = np.where(early, truth[first.name], other[first.name])
    return dict(other) | {first.name: mixed}
