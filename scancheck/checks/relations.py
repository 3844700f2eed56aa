"""Metamorphic relations: what a kernel makes of related inputs, by the same ruler.

A relation runs the kernel on related inputs whose truth is known from the case's. Most
are judged against certified truth under a sound budget; some must hold to the bit for
kernels that declare enough (numerics section 4).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from scancheck.case import Case
from scancheck.checks.oracle import CaseReport, Request
from scancheck.checks.related import (
    Subject,
    call_failed,
    judged,
    run_once,
    stored_truth,
    subject_of,
)
from scancheck.checks.resumed import prefill_and_step, split, streaming
from scancheck.checks.several import neighbours, one_by_one, padding_poisoned
from scancheck.checks.transformed import padding, scaling, time_similarity
from scancheck.kernel import Kernel
from scancheck.ops.calling import calling_of, op_of
from scancheck.ops.normal_form import Op, spec_of, state_inputs, state_outputs
from scancheck.recipes.build import build

# Cases that relations are tried on: lengths where a cut leaves odd pieces.
CASES = 4
CALLS = 2  # calls of several sequences, of each kind
FULL_SET = 2  # of them, those on which the relations of many calls are tried too
SHORTEST, LONGEST = 20, 700
# Inputs that keep their sign where later tokens change: decays and how much is erased,
# so that what is not judged does not overflow.
SIGNED = frozenset(("a", "g", "gk", "gv", "w", "delta", "dt", "beta"))

Relation = Callable[[Subject], CaseReport | None]
TRANSFORMED: tuple[Relation, ...] = (padding, scaling, time_similarity)
SEVERAL: tuple[Relation, ...] = (neighbours, one_by_one, padding_poisoned)
STEPPING: tuple[Relation, ...] = (prefill_and_step, streaming)


def relation_reports(
    kernel: Kernel,
    op: Op,
    cases: Iterable[Case],
    request: Request,
    accepted: frozenset[str],
    returned: tuple[str, ...],
) -> Iterator[CaseReport]:
    """Reports of the relations that the kernel's signature and the op permit.

    Later tokens changed, a sequence split and resumed, and a batch row alone on a few
    cases; on the first of these also single steps after a prefill and from the start,
    padding, scaling by a power of two and similarity in time. Of calls of several
    sequences, what is NaN elsewhere.
    """
    cases = list(cases)
    fitting = [
        case
        for case in cases
        if calling_of(dict(case.options)) is None
        and SHORTEST <= dict(case.sizes)[op.time_axis] <= LONGEST
        and dict(case.sizes)["B"] > 0
        and case.recipe in ("gaussian_slow", "decay_near_one", "mixed_time_scales")
    ][:CASES]
    finals = {spec.name for spec in state_outputs(op)}
    resumes = accepted.issuperset(state_inputs(op)) and finals.issubset(returned)
    for index, case in enumerate(fitting):
        relations: list[Relation] = [_causality]
        if resumes:
            relations.append(split)
        if dict(case.sizes)["B"] > 1:
            relations.append(_row_alone)
        if index < FULL_SET:
            relations += [*(STEPPING if resumes else ()), *TRANSFORMED]
        subject = subject_of(kernel, op, case, build(case), request)
        for relation in relations:
            report = relation(subject)
            # A kernel that cannot be called on the case itself is red there.
            if report is not None and report.checks:
                yield report
    yield from _of_calls(kernel, cases, request)


def _of_calls(
    kernel: Kernel, cases: Iterable[Case], request: Request
) -> Iterator[CaseReport]:
    """Reports of the relations of packed and of padded calls, on the first of each."""
    left = {"cu_seqlens": CALLS, "attention_mask": CALLS}
    for case in cases:
        op = op_of(case)
        arguments = () if op.calling is None else op.calling.arguments
        (kind, *_) = *(name for name in arguments if name in left), None
        steps = dict(case.sizes)[op.time_axis]
        if kind is None or not left[kind] or not SHORTEST <= steps <= LONGEST:
            continue
        left[kind] -= 1
        subject = subject_of(kernel, op, case, build(case), request)
        for relation in SEVERAL:
            report = relation(subject)
            if report is not None and report.checks:
                yield report


def _causality(subject: Subject) -> CaseReport:
    """Later tokens changed; earlier outputs must still be right."""
    op, inputs = subject.op, subject.inputs
    total = dict(subject.case.sizes)[op.time_axis]
    keep = max(1, 2 * total // 3)
    tensors = {}
    for name, values in inputs.tensors.items():
        axes = spec_of(op, name, values.ndim).axes
        if op.time_axis not in axes:
            tensors[name] = values
            continue
        moved = np.moveaxis(values.copy(), axes.index(op.time_axis), 0)
        # Values that the tensor holds already, or their negatives, stay representable.
        kept = name in SIGNED or (not op.diagonal and name == "b")
        moved[keep:] = moved[keep:][::-1] * (1.0 if kept else -1.0)
        tensors[name] = np.moveaxis(moved, 0, axes.index(op.time_axis))
    changed = run_once(subject, replace(inputs, tensors=tensors))
    if changed.problem is not None:
        return call_failed(subject, changed, "relation:causality")
    sequence = op.outputs[0]
    got = {}
    if (
        sequence.name in changed.outputs
        and sequence.name in subject.whole.outcome.outputs
    ):
        axis = sequence.axes.index(op.time_axis)
        own = np.moveaxis(changed.outputs[sequence.name], axis, 0)
        mixed = np.moveaxis(stored_truth(subject, sequence.name), axis, 0)
        mixed[:keep] = own[:keep]
        got[sequence.name] = np.moveaxis(mixed, 0, axis)
    return judged(subject, got, "relation:causality")


def _row_alone(subject: Subject) -> CaseReport:
    """The last batch row by itself; it must be right without its neighbours."""
    op, inputs = subject.op, subject.inputs
    tensors = {}
    for name, values in inputs.tensors.items():
        axes = spec_of(op, name, values.ndim).axes
        tensors[name] = values[-1:] if axes[0] == "B" else values
    alone = run_once(subject, replace(inputs, tensors=tensors))
    if alone.problem is not None:
        return call_failed(subject, alone, "relation:batch_row")
    got = {}
    for spec in op.outputs:
        if spec.name in alone.outputs:
            mixed = stored_truth(subject, spec.name)
            mixed[-1:] = alone.outputs[spec.name]
            got[spec.name] = mixed
    return judged(subject, got, "relation:batch_row")
