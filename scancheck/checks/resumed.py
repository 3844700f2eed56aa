"""Relations that cut a sequence and resume it from the state that was returned.

What is put together is compared with the certified truth of the case, under the budget
of an unknown order: resuming is one more order of the same additions and products
(numerics 2.2, section 4). Bits need not agree: a tree over fewer tokens is another one.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from scancheck.checks.oracle import CaseReport
from scancheck.checks.related import (
    Subject,
    call_failed,
    judged,
    part,
    run_once,
    subject_of,
)
from scancheck.ops.normal_form import state_inputs, state_outputs

FloatArray = NDArray[np.float64]

STREAMED = 24  # tokens taken one by one from the start
STEPS = 4  # tokens taken one by one after a prefill


def split(subject: Subject) -> CaseReport:
    """The sequence cut at an odd place and resumed from the returned state."""
    total = _steps(subject)
    cut = max(1, (total // 3) | 1)
    return _resumed(subject, (0, cut, total), "relation:split")


def prefill_and_step(subject: Subject) -> CaseReport:
    """All but the last tokens in one call, then a call for each of those."""
    total = _steps(subject)
    cuts = (0, *range(total - STEPS, total + 1))
    return _resumed(subject, cuts, "relation:prefill_and_step")


def streaming(subject: Subject) -> CaseReport:
    """The first tokens, one call for each."""
    first = min(STREAMED, _steps(subject))
    start = subject_of(
        subject.kernel,
        subject.op,
        subject.case,
        part(subject.op, subject.inputs, 0, first),
        subject.request,
    )
    return _resumed(start, range(first + 1), "relation:streaming")


def _steps(subject: Subject) -> int:
    return dict(subject.case.sizes)[subject.op.time_axis]


def _resumed(subject: Subject, cuts: Sequence[int], check: str) -> CaseReport:
    """The pieces between cuts, each from the state that the one before returned."""
    op = subject.op
    sequence = op.outputs[0]
    finals = [spec.name for spec in state_outputs(op)]
    pieces = []
    state: dict[str, FloatArray] = {}
    for start, stop in pairwise(cuts):
        inputs = part(op, subject.inputs, start, stop)
        inputs = replace(inputs, tensors=dict(inputs.tensors) | state)
        outcome = run_once(subject, inputs)
        if outcome.problem is not None:
            return call_failed(subject, outcome, check)
        if any(name not in outcome.outputs for name in finals):
            return judged(subject, {}, check)
        named = zip(state_inputs(op), finals, strict=True)
        state = {initial: outcome.outputs[final] for initial, final in named}
        pieces.append(outcome.outputs)
    got = {}
    if all(sequence.name in piece for piece in pieces):
        axis = sequence.axes.index(op.time_axis)
        got[sequence.name] = np.concatenate(
            [piece[sequence.name] for piece in pieces], axis
        )
    got |= {name: pieces[-1][name] for name in finals}
    return judged(subject, got, check)
