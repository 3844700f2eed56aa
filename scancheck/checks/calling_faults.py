"""Faults in what a call of several sequences means: boundaries, states, direction.

Each is the oracle on other sequences than those of the call: cut elsewhere, started
from another state, run in the other direction, or with padding taken for tokens.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from scancheck.checks.agreement import FloatArray
from scancheck.checks.carry_faults import Fault
from scancheck.checks.faulty_recurrence import Outputs
from scancheck.checks.oracle import CaseReport
from scancheck.ops import op_named
from scancheck.ops.calling import Calling, called, calling_of
from scancheck.ops.normal_form import Op, spec_of, state_inputs, state_outputs
from scancheck.oracles.called import Call
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.recipes.inputs import without_padding


def faults_of_calling(report: CaseReport, chunks: Iterable[int]) -> Iterator[Fault]:
    """The faults with the outputs that they would give; none of a plain call."""
    calling = calling_of(dict(report.case.options))
    if calling is None:
        return
    if calling.reverse:
        detail = "the outputs are those of a run from the first token"
        forward = replace(calling, reverse=False)
        yield "reverse_ignored", detail, _as_called(report, forward)
    if calling.lengths is not None:
        yield "padding_counted", "", _with_padding(report, calling)
    if calling.cu_seqlens is not None:
        yield from _of_packing(report, calling, calling.cu_seqlens, chunks)


def without_boundaries(report: CaseReport) -> Outputs | None:
    """What comes of packed sequences if each goes on with the state before it."""
    calling = calling_of(dict(report.case.options))
    if calling is None or calling.cu_seqlens is None:
        return None
    return _running_on(report, calling, lambda first: True)


def run_forward(report: CaseReport) -> Outputs | None:
    """What comes of a reversed call if it is not reversed."""
    calling = calling_of(dict(report.case.options))
    if calling is None or not calling.reverse:
        return None
    return _as_called(report, replace(calling, reverse=False))


def with_padding(report: CaseReport) -> Outputs | None:
    """What comes of a padded call if its padding is taken for tokens."""
    calling = calling_of(dict(report.case.options))
    if calling is None or calling.lengths is None:
        return None
    return _with_padding(report, calling)


def _of_packing(
    report: CaseReport,
    calling: Calling,
    offsets: tuple[int, ...],
    chunks: Iterable[int],
) -> Iterator[Fault]:
    yield (
        "boundary_ignored",
        "every sequence goes on with the state of the one before",
        _running_on(report, calling, lambda first: True),
    )
    for chunk in chunks:
        yield (
            "boundary_ignored",
            f"a sequence that begins inside a chunk of {chunk} goes on with the state "
            "of the one before",
            _running_on(report, calling, partial(_inside, chunk)),
        )
        for told, up in (("first", 0), ("last", chunk - 1)):
            moved = [(n + up) // chunk * chunk for n in offsets[1:-1]]
            bounds = (0, *(min(n, offsets[-1]) for n in moved), offsets[-1])
            yield (
                "boundary_moved",
                f"sequences are cut at the {told} edge of the chunk of {chunk} in "
                "which they begin",
                _as_called(report, replace(calling, cu_seqlens=bounds)),
            )
    yield from _of_states(report, calling, offsets)


def _inside(chunk: int, first: int) -> bool:
    return first % chunk != 0


def _of_states(
    report: CaseReport, calling: Calling, offsets: tuple[int, ...]
) -> Iterator[Fault]:
    """Entries of the states that belong to other sequences."""
    op = called(op_named(report.case.op), calling)
    tensors = report.inputs.tensors
    given = {name: tensors[name] for name in state_inputs(op) if name in tensors}
    if given and len(offsets) > 2:
        start = {n: np.broadcast_to(x[:1], x.shape) for n, x in given.items()}
        rolled = {n: np.roll(x, -1, axis=0) for n, x in given.items()}
        yield (
            "sequence_state",
            "all sequences start from the initial state of the first one",
            _as_called(report, calling, start),
        )
        yield (
            "sequence_state",
            "each sequence starts from the initial state of the next one",
            _as_called(report, calling, rolled),
        )
    empty = [i for i, (a, b) in enumerate(pairwise(offsets)) if a == b]
    truth = {name: t.hi for name, t in report.truth.outputs.items()}
    for source in (0, None):
        # What an empty sequence hands on lands in entry 0, and its own stays zero.
        moved = {}
        for before, spec in zip(state_inputs(op), state_outputs(op), strict=True):
            states = moved[spec.name] = truth[spec.name].copy()
            for i in empty:
                if i == 0:
                    continue
                kept = np.zeros_like(states[0])
                if before in given:
                    kept = given[before][i if source is None else source]
                states[i], states[0] = 0.0, kept
        if any(not np.array_equal(x, truth[name]) for name, x in moved.items()):
            detail = "its final state is at entry 0, where that of the first one was"
            yield "sequence_slot", detail, truth | moved


def _as_called(
    report: CaseReport,
    calling: Calling | None,
    other: dict[str, FloatArray] | None = None,
) -> Outputs:
    """The outputs of the case's tensors, or some others, called in another way."""
    op = called(op_named(report.case.op), calling)
    tensors = report.inputs.tensors | (other or {})
    solution = solve(Fp64System(), op, tensors, report.inputs.switches)
    return {name: ball.value for name, ball in solution.outputs.items()}


def _with_padding(report: CaseReport, calling: Calling) -> Outputs:
    """Every place of a row computed; the places of padding are not judged."""
    bare = replace(calling, lengths=None, pad_left=False)
    found = _as_called(report, None if bare == Calling() else bare)
    op = called(op_named(report.case.op), calling)
    return {
        name: without_padding(op, spec_of(op, name, values.ndim), values)
        for name, values in found.items()
    }


def _running_on(
    report: CaseReport, calling: Calling, goes_on: Callable[[int], bool]
) -> Outputs:
    """Each sequence from its own state, or from the one that is left before it."""
    op = called(op_named(report.case.op), calling)
    system = Fp64System()
    call = Call(op, report.inputs.tensors, system.constant, system.reduced)
    left: list[dict[str, FloatArray]] = []

    def alone(bare: Op, part: Any, bars: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        if left and goes_on(call.segments[len(left)].first):
            part = {**part, **left[-1]}
        outputs = solve(system, bare, part, report.inputs.switches).outputs
        states = zip(state_inputs(op), state_outputs(op), strict=True)
        left.append({name: outputs[spec.name].value for name, spec in states})
        return outputs, {}

    outputs, _ = call.solved(alone, None)
    return {name: ball.value for name, ball in outputs.items()}
