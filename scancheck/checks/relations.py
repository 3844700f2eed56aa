"""The cheapest metamorphic relations, each judged by the same ruler.

A relation runs the kernel on related inputs whose truth is known to agree with the
case's on some part. That part is compared with the certified truth of the case, under
the budget of an unknown order: cutting a sequence and resuming it, or computing one row
alone, is one more order of the same additions and products (numerics 2.2, section 4).
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.budget import budget_for, storage_dtype
from scancheck.case import Case
from scancheck.checks.oracle import CaseReport, Request, call_checks, check_inputs
from scancheck.contract import Structure
from scancheck.formats import format_named, round_array
from scancheck.kernel import Kernel
from scancheck.metrics import TensorMetrics, measure
from scancheck.ops.normal_form import Op, spec_of
from scancheck.oracles.ladder import certify
from scancheck.recipes.build import build
from scancheck.recipes.inputs import Inputs
from scancheck.runner import Outcome, execute
from scancheck.verdict import Check, judge, worst_verdict

FloatArray = NDArray[np.float64]

# Cases that relations are tried on: lengths where a cut leaves odd pieces.
CASES = 4
SHORTEST, LONGEST = 20, 700


def relation_reports(
    kernel: Kernel,
    op: Op,
    cases: Iterable[Case],
    request: Request,
    accepted: frozenset[str],
    returned: tuple[str, ...],
) -> Iterator[CaseReport]:
    """Reports of split-and-resume, causality and a batch row alone."""
    fitting = [
        case
        for case in cases
        if SHORTEST <= dict(case.sizes)[op.time_axis] <= LONGEST
        and dict(case.sizes)["B"] > 0
        and case.recipe in ("gaussian_slow", "decay_near_one", "mixed_time_scales")
    ][:CASES]
    final = op.outputs[1].name
    resumes = op.state in accepted and final in returned
    for case in fitting:
        inputs = build(case)
        relations = [_causality]
        if resumes:
            relations.append(_split)
        if dict(case.sizes)["B"] > 1:
            relations.append(_row_alone)
        for relation in relations:
            report = relation(kernel, op, case, inputs, request)
            # A kernel that cannot be called on the case itself is red there.
            if report.checks:
                yield report


def _split(
    kernel: Kernel, op: Op, case: Case, inputs: Inputs, request: Request
) -> CaseReport:
    """The sequence cut at an odd place and resumed from the returned state."""
    total = dict(case.sizes)[op.time_axis]
    cut = max(1, (total // 3) | 1)
    head = _part(op, inputs, 0, cut)
    first = execute(kernel, op, head, case.dtype, runs=1)
    whole = check_inputs(kernel, case, inputs, _bare(request))
    if first.problem is not None:
        return _call_failed(op, whole, first, "relation:split")
    if op.outputs[1].name not in first.outputs:
        return _renamed(whole, "relation:split", {})
    tail = _part(op, inputs, cut, total)
    tensors = dict(tail.tensors) | {op.state: first.outputs[op.outputs[1].name]}
    second = execute(kernel, op, replace(tail, tensors=tensors), case.dtype, runs=1)
    if second.problem is not None:
        return _call_failed(op, whole, second, "relation:split")
    sequence, final = op.outputs
    got = {}
    if sequence.name in first.outputs and sequence.name in second.outputs:
        axis = sequence.axes.index(op.time_axis)
        pieces = (first.outputs[sequence.name], second.outputs[sequence.name])
        got[sequence.name] = np.concatenate(pieces, axis)
    if final.name in second.outputs:
        got[final.name] = second.outputs[final.name]
    return _judged(op, case, whole, got, "relation:split", request)


def _causality(
    kernel: Kernel, op: Op, case: Case, inputs: Inputs, request: Request
) -> CaseReport:
    """Later tokens changed; earlier outputs must still be right."""
    total = dict(case.sizes)[op.time_axis]
    keep = max(1, 2 * total // 3)
    tensors = {}
    for name, values in inputs.tensors.items():
        axes = spec_of(op, name, values.ndim).axes
        if op.time_axis not in axes:
            tensors[name] = values
            continue
        moved = np.moveaxis(values.copy(), axes.index(op.time_axis), 0)
        # Values that the tensor holds already, or their negatives, stay representable;
        # decays keep their sign, so that what is not judged does not overflow.
        decays = name in ("a", "g", "delta")
        moved[keep:] = moved[keep:][::-1] * (1.0 if decays else -1.0)
        tensors[name] = np.moveaxis(moved, 0, axes.index(op.time_axis))
    changed = execute(kernel, op, replace(inputs, tensors=tensors), case.dtype, runs=1)
    whole = check_inputs(kernel, case, inputs, _bare(request))
    if changed.problem is not None:
        return _call_failed(op, whole, changed, "relation:causality")
    sequence = op.outputs[0]
    got = {}
    if sequence.name in changed.outputs and sequence.name in whole.outcome.outputs:
        axis = sequence.axes.index(op.time_axis)
        own = np.moveaxis(changed.outputs[sequence.name], axis, 0)
        mixed = np.moveaxis(_stored_truth(op, case, whole, sequence.name), axis, 0)
        mixed[:keep] = own[:keep]
        got[sequence.name] = np.moveaxis(mixed, 0, axis)
    return _judged(op, case, whole, got, "relation:causality", request)


def _row_alone(
    kernel: Kernel, op: Op, case: Case, inputs: Inputs, request: Request
) -> CaseReport:
    """The last batch row by itself; it must be right without its neighbours."""
    tensors = {}
    for name, values in inputs.tensors.items():
        axes = spec_of(op, name, values.ndim).axes
        tensors[name] = values[-1:] if axes[0] == "B" else values
    alone = execute(kernel, op, replace(inputs, tensors=tensors), case.dtype, runs=1)
    whole = check_inputs(kernel, case, inputs, _bare(request))
    if alone.problem is not None:
        return _call_failed(op, whole, alone, "relation:batch_row")
    got = {}
    for spec in op.outputs:
        if spec.name in alone.outputs:
            mixed = _stored_truth(op, case, whole, spec.name)
            mixed[-1:] = alone.outputs[spec.name]
            got[spec.name] = mixed
    return _judged(op, case, whole, got, "relation:batch_row", request)


def _stored_truth(op: Op, case: Case, whole: CaseReport, name: str) -> FloatArray:
    """What a right kernel returns where a relation says nothing.

    In the output's format: beyond its largest value the truth itself would be wrong.
    """
    exact = whole.truth.outputs[name].hi
    stored = storage_dtype(op, name, case.dtype, exact.ndim)
    return round_array(format_named(stored), exact)


def _part(op: Op, inputs: Inputs, start: int, stop: int) -> Inputs:
    """The inputs of some steps only."""
    tensors = {}
    for name, values in inputs.tensors.items():
        axes = spec_of(op, name, values.ndim).axes
        index = [slice(None)] * values.ndim
        if op.time_axis in axes:
            index[axes.index(op.time_axis)] = slice(start, stop)
        tensors[name] = values[tuple(index)]
    return replace(inputs, tensors=tensors)


def _bare(request: Request) -> Request:
    return replace(request, gradients=False)


def _judged(
    op: Op,
    case: Case,
    whole: CaseReport,
    got: dict[str, FloatArray],
    check: str,
    request: Request,
) -> CaseReport:
    """The relation's outputs against the case's truth, for any order."""
    # Cutting restarts the count of steps between stores of the state.
    loose = replace(request.contract, structure=Structure(), comp="none", state_every=1)
    budget = budget_for(
        op, whole.inputs.tensors, whole.inputs.switches, loose, case.dtype
    )
    allowance = {n: a.error for n, a in budget.outputs.items()}
    truth = certify(op, whole.inputs.tensors, whole.inputs.switches, None, allowance)
    metrics = {}
    for name, values in got.items():
        metrics[name] = measure(name, values, truth.outputs[name], budget.outputs[name])
    return _renamed(
        replace(whole, truth=truth, budget=budget), check, metrics, op=op, got=got
    )


def _call_failed(op: Op, whole: CaseReport, outcome: Outcome, check: str) -> CaseReport:
    """The report of a relation whose own call went wrong; none where all do."""
    failed = [] if whole.outcome.problem is not None else call_checks(op, outcome)
    checks = tuple(replace(found, check=check) for found in failed)
    return replace(
        whole,
        checks=checks,
        verdict=worst_verdict(c.verdict for c in checks),
        metrics={},
        gradient_metrics={},
        outcome=outcome,
    )


def _renamed(
    report: CaseReport,
    check: str,
    metrics: dict[str, TensorMetrics],
    *,
    op: Op | None = None,
    got: dict[str, FloatArray] | None = None,
) -> CaseReport:
    """The report of a relation: only its own checks count."""
    checks: list[Check] = []
    for name, found in metrics.items():
        assert op is not None
        axes = spec_of(op, name, found.ratio.ndim).axes
        axis = axes.index(op.time_axis) if op.time_axis in axes else None
        checks.append(judge(check, found, time_axis=axis))
    outcome = report.outcome
    if got is not None:
        outcome = replace(outcome, outputs=got, differs={}, gradient_differs={})
    return replace(
        report,
        checks=tuple(checks),
        verdict=worst_verdict(c.verdict for c in checks),
        metrics=metrics,
        gradient_metrics={},
        outcome=outcome,
    )
