"""What relations share: a case with its certified truth, and reports about it."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.budget import Budget, budget_for, storage_dtype
from scancheck.case import Case
from scancheck.checks.judging_device import judged_on
from scancheck.checks.oracle import (
    CaseReport,
    Request,
    call_checks,
    check_inputs,
    device_for_case,
)
from scancheck.contract import Contract, Structure, formats_used, resolve
from scancheck.formats import FP32, FP64, format_named, round_array
from scancheck.kernel import Kernel
from scancheck.metrics import measure
from scancheck.ops.normal_form import Op, spec_of
from scancheck.oracles.ladder import Reference, Truth, certify
from scancheck.recipes.inputs import Inputs
from scancheck.runner import Outcome, execute
from scancheck.verdict import Check, judge, worst_verdict

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A case that relations are tried on."""

    kernel: Kernel
    op: Op
    case: Case
    inputs: Inputs
    request: Request
    whole: CaseReport  # the kernel's own report on the case
    budget: Budget  # of the case, for any order and a state kept at every step
    truth: Truth  # of the case, certified against that budget


def subject_of(
    kernel: Kernel, op: Op, case: Case, inputs: Inputs, request: Request
) -> Subject:
    """The kernel's report on the inputs, with what judges them in any order."""
    bare = replace(request, gradients=False)
    loose = any_order(op, request.contract, case.dtype)
    solved = judged_on(
        device_for_case(op, case, request),
        partial(_budget_and_truth, op, inputs, loose, case.dtype),
    )
    budget, truth = solved.found
    return Subject(
        kernel=kernel,
        op=op,
        case=case,
        inputs=inputs,
        request=bare,
        whole=check_inputs(kernel, case, inputs, bare),
        budget=budget,
        truth=truth,
    )


def _budget_and_truth(
    op: Op, inputs: Inputs, contract: Contract, dtype: str, device: str
) -> tuple[Budget, Truth]:
    """The budget of all outputs, and references that are certified against it."""
    given = op, inputs.tensors, inputs.switches
    budget = budget_for(*given, contract, dtype, device=device)
    if op.diagonal and contract.log != "none" and is_state_short(contract, dtype):
        # A chunk of logs stores its state at its end alone, and here it is whole.
        steps = replace(contract, log="none", range="products")
        stored = budget_for(*given, steps, dtype, device=device).outputs
        budget = Budget(
            outputs={
                name: replace(
                    allowed,
                    error=allowed.error + stored[name].error,
                    overflows=allowed.overflows | stored[name].overflows,
                )
                for name, allowed in budget.outputs.items()
            },
            gradients={},
        )
    allowance = {name: a.error for name, a in budget.outputs.items()}
    return budget, certify(*given, None, allowance, device=device)


def is_state_short(contract: Contract, dtype: str) -> bool:
    """Whether the state is kept in a shorter format than that of computation."""
    resolved = resolve(contract, dtype)
    state, compute = map(format_named, (resolved.state, resolved.compute))
    return state.precision < compute.precision


def any_order(op: Op, contract: Contract, dtype: str) -> Contract:
    """The contract of a kernel whose sequence may be cut anywhere and resumed.

    A rank-one transition keeps the order that is declared: a bound for others there is
    not.

    Cutting restarts the count of steps between stores of the state, and hands the state
    over in the format of the op's state, which may be shorter than the kernel's own.
    """
    returned = FP64 if dtype == FP64.name else FP32
    kept = format_named(resolve(contract, dtype).state)
    state = returned.name if kept.precision > returned.precision else contract.state
    structure = Structure() if op.diagonal else contract.structure
    return replace(
        contract,
        structure=structure,
        comp="none",
        state=state,
        state_every=1,
        gate_gradient="direct",  # of gradients, which are not judged here
    )


def part(op: Op, inputs: Inputs, start: int, stop: int) -> Inputs:
    """The inputs of some steps only."""
    tensors = {}
    for name, values in inputs.tensors.items():
        axes = spec_of(op, name, values.ndim).axes
        index = [slice(None)] * values.ndim
        if op.time_axis in axes:
            index[axes.index(op.time_axis)] = slice(start, stop)
        tensors[name] = values[tuple(index)]
    return replace(inputs, tensors=tensors)


def run_once(subject: Subject, inputs: Inputs) -> Outcome:
    """The outcome of one call of the kernel on these inputs."""
    return execute(subject.kernel, subject.op, inputs, subject.case.dtype, runs=1)


def bitwise(subject: Subject) -> bool:
    """Whether bits may be asked for: of a declared, repeatable kernel in wide formats.

    A kernel that declares nothing may take logarithms, well within its budget.
    """
    contract, outcome = subject.request.contract, subject.whole.outcome
    declared = subject.kernel.contract is not None or contract != Contract()
    repeats = not any(mask.any() for mask in outcome.differs.values())
    if not declared or outcome.problem is not None or not repeats:
        return False
    used = formats_used(contract, subject.case.dtype)
    return all(fmt.emin <= FP32.emin for fmt in used)


def stored_truth(subject: Subject, name: str) -> FloatArray:
    """What a right kernel returns where a relation says nothing.

    In the output's format: beyond its largest value the truth itself would be wrong.
    """
    exact = subject.truth.outputs[name].hi
    stored = storage_dtype(subject.op, name, subject.case.dtype, exact.ndim)
    return round_array(format_named(stored), exact)


def judged(subject: Subject, got: dict[str, FloatArray], check: str) -> CaseReport:
    """Outputs that a relation put together, against the truth of the case."""
    return _report(subject, check, got, subject.budget, subject.truth)


def compared(
    subject: Subject,
    got: dict[str, FloatArray],
    wanted: dict[str, FloatArray],
    slack: dict[str, FloatArray],
    check: str,
) -> CaseReport:
    """Outputs that must equal others to the bit, but for `slack` where it is not 0.

    NaN equals NaN: a format without infinity stores an overflow as it, and whether an
    overflow is right is judged on the case.
    """
    budget, truth, compared_to = {}, {}, {}
    for name, values in wanted.items():
        if name in got:
            same = np.isnan(got[name]) & np.isnan(values)
            values = np.where(same, 0.0, values)
            compared_to[name] = np.where(same, 0.0, got[name])
        budget[name] = replace(
            subject.budget.outputs[name],
            error=slack[name],
            overflows=np.zeros(values.shape, dtype=bool),
        )
        nothing = np.zeros(values.shape)
        truth[name] = Reference(
            hi=values, lo=nothing, radius=nothing, certified=nothing == 0, rung="self"
        )
    report = _report(
        subject,
        check,
        compared_to,
        replace(subject.budget, outputs=budget),
        replace(subject.truth, outputs=truth),
    )
    checks = tuple(
        replace(found, reason=f"not the same bits: {found.reason}")
        if found.reason
        else found
        for found in report.checks
    )
    return replace(report, checks=checks)


def _report(
    subject: Subject,
    check: str,
    got: dict[str, FloatArray],
    budget: Budget,
    truth: Truth,
) -> CaseReport:
    metrics = {
        name: measure(name, values, truth.outputs[name], budget.outputs[name])
        for name, values in got.items()
    }
    checks: list[Check] = []
    for name, found in metrics.items():
        axes = spec_of(subject.op, name, found.ratio.ndim).axes
        time = subject.op.time_axis
        axis = axes.index(time) if time in axes else None
        checks.append(judge(check, found, time_axis=axis))
    outcome = replace(
        subject.whole.outcome, outputs=got, differs={}, gradient_differs={}
    )
    return replace(
        subject.whole,
        checks=tuple(checks),
        verdict=worst_verdict(c.verdict for c in checks),
        metrics=metrics,
        gradient_metrics={},
        outcome=outcome,
        budget=budget,
        truth=truth,
    )


def call_failed(subject: Subject, outcome: Outcome, check: str) -> CaseReport:
    """The report of a relation whose own call went wrong; none where all do."""
    whole = subject.whole
    failed = (
        [] if whole.outcome.problem is not None else call_checks(subject.op, outcome)
    )
    checks = tuple(replace(found, check=check) for found in failed)
    return replace(
        whole,
        checks=checks,
        verdict=worst_verdict(c.verdict for c in checks),
        metrics={},
        gradient_metrics={},
        outcome=outcome,
    )


def renamed(report: CaseReport, check: str) -> CaseReport:
    """A report on related inputs, its checks under the relation's name."""
    checks = tuple(replace(found, check=check) for found in report.checks)
    return replace(report, checks=checks)
