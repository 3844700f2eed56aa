"""A failing case run or judged again in other ways, and the diagnosis that follows."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from scancheck.bounds.budget import Allowance, budget_for
from scancheck.checks.digits import explain_digits
from scancheck.checks.gradient_faults import explain_gradients
from scancheck.checks.hypotheses import explain
from scancheck.checks.operand_rounding import explain_operands, explain_writes
from scancheck.checks.oracle import CaseReport, Request, check_case
from scancheck.checks.range_faults import explain_nonfinite
from scancheck.contract import Contract, parse_contract
from scancheck.diagnosis import CAUSES, Mask, Place, heals_inside_chunks, locate
from scancheck.errors import CaseInvalid, ScancheckError
from scancheck.formats import FP64, format_named
from scancheck.kernel import Kernel
from scancheck.metrics import measure
from scancheck.ops.calling import op_of
from scancheck.ops.constant_decays import has_constant_decays
from scancheck.ops.normal_form import spec_of, state_inputs, state_outputs
from scancheck.runner import execute
from scancheck.runner.poison import memory_filled_with
from scancheck.verdict import RED, Check, Verdict

# Contracts that are tried, narrowest first, on outputs that failed (semantics.md).
WIDER = (
    "comp=none",
    "constant_decay=exp",
    "operands=tf32",
    "state=bf16",
    "state=fp16",
    "operands=storage",
    "compute=tf32",
    "compute=storage",
    "compute=fp16",
    "compute=bf16",
    "log=diff",
)
# Causes that the pattern of wrong elements suggests, which rounding could make as well.
PATTERNS = ("unknown", "local", "short_state")
WIDENED = {
    "comp": "compensation",
    "state": "short_state",
    "operands": "short_compute",
    "compute": "short_compute",
}
# What NaN that is none of a sequence's own says where it comes out.
LEAKS = {
    "relation:neighbours": "sequence_leak",
    "relation:poisoned_padding": "padding_leak",
}
COMMON_CHUNKS = (64, 128, 256, 32, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Where a check failed, why probably, and what to try."""

    cause: str  # key of diagnosis.CAUSES
    reason: str  # likely cause in words, with what was found
    advice: str
    place: Place | None = None
    would_pass: str | None = None  # contract under which the outputs pass
    shrinks: bool | None = None  # error shrinks with a wider dtype; None: unknown


def likely_cause(
    kernel: Kernel, report: CaseReport, check: Check
) -> tuple[str, str, Place | None]:
    """Key of the likely cause of a red check, what was seen, and where."""
    place = _place(kernel, report, check)
    cause, detail = _cause(kernel, report, check, place)
    return cause, detail, place


def diagnose(
    kernel: Kernel,
    report: CaseReport,
    check: Check,
    request: Request,
    would_pass: str | None,
) -> Diagnosis:
    """The diagnosis of one red check of a case.

    `would_pass` is a wider contract under which all outputs of the run pass.
    """
    cause, detail, place = likely_cause(kernel, report, check)
    if check.check == "oracle" and would_pass is not None and cause in PATTERNS:
        cause, detail = explained_by(would_pass, cause)
    known = CAUSES[cause]
    return Diagnosis(
        cause=cause,
        reason=f"{known.text}; {detail}" if detail else known.text,
        advice=known.advice,
        place=place,
        would_pass=would_pass if check.check == "oracle" else None,
        shrinks=_shrinks(kernel, report, request, check),
    )


def explained_by(would_pass: str, cause: str) -> tuple[str, str]:
    """Cause and what was seen, where all outputs of a run pass a wider contract.

    The cause stays where the contract is wider in something else than a format.
    """
    name, _, _ = would_pass.partition("=")
    return WIDENED.get(
        name, cause
    ), f"the outputs are within the budget of {would_pass}"


def _place(kernel: Kernel, report: CaseReport, check: Check) -> Place | None:
    """The place of the first wrong element of the check's tensor."""
    if check.tensor is None:
        return None
    gradient = check.check == "gradient"
    metrics = (report.gradient_metrics if gradient else report.metrics).get(
        check.tensor
    )
    if metrics is None:
        return None
    op = op_of(report.case)
    axes = spec_of(op, check.tensor, metrics.ratio.ndim).axes
    if op.time_axis not in axes:
        return None
    axis = axes.index(op.time_axis)
    place = locate(metrics.wrong, axis, kernel.chunk)
    if place is None or op.calling is None or op.calling.cu_seqlens is None:
        return place
    return _in_sequence(metrics.wrong, axis, kernel.chunk, op.calling.cu_seqlens, place)


def _in_sequence(
    wrong: Mask, axis: int, chunk: int | None, offsets: tuple[int, ...], place: Place
) -> Place:
    """The place with its packed sequence, from whose first token chunks are counted."""
    sequence = bisect_right(offsets, place.token) - 1
    tokens = np.arange(offsets[sequence], offsets[sequence + 1])
    own = locate(np.take(wrong, tokens, axis), axis, chunk)
    assert own is not None
    return replace(own, token=place.token, sequence=sequence)


def _cause(
    kernel: Kernel,
    report: CaseReport,
    check: Check,
    place: Place | None,
) -> tuple[str, str]:
    """Key of the likely cause, and what was seen."""
    if check.check == "repeat":
        return "nondeterministic", ""
    if check.tensor is None:  # about a call, not a tensor
        problem = report.outcome.problem
        changed = problem is not None and problem.kind in (
            "input_changed",
            "aliases_input",
        )
        return ("input_changed" if changed else "call"), ""
    if check.check == "gradient":
        return _gradient_cause(report, check)
    if check.check in LEAKS and check.verdict is Verdict.NONFINITE:
        return LEAKS[check.check], ""
    if check.verdict is Verdict.SUSPECT:
        return "bias", ""
    if any(mask.any() for mask in report.outcome.differs.values()):
        return "nondeterministic", ""
    chunks = _chunks(kernel, place)
    found = explain_nonfinite(kernel, report, chunks)
    if found is None and check.verdict is Verdict.NONFINITE:
        return _nonfinite_cause(kernel, report, check)
    found = found or explain(report, chunks) or explain_writes(report)
    found = found or explain_digits(report) or explain_operands(report)
    if found is not None:
        return found.cause, found.detail
    return _pattern_cause(kernel, report, place)


def _chunks(kernel: Kernel, place: Place | None) -> list[int]:
    """Chunk sizes worth trying: the declared one, the found one, common ones."""
    if kernel.chunk is not None:
        return [kernel.chunk]
    chunks = list(COMMON_CHUNKS)
    if place is not None and place.token > 0:
        fitting = [c for c in (2**k for k in range(10, 2, -1)) if place.token % c == 0]
        chunks = fitting + [c for c in chunks if c not in fitting]
    return chunks


def _nonfinite_cause(
    kernel: Kernel, report: CaseReport, check: Check
) -> tuple[str, str]:
    """Unwritten memory, where NaN goes with what the memory held before the call."""
    name = str(check.tensor)
    op = op_of(report.case)
    with memory_filled_with(0):
        again = execute(kernel, op, report.inputs, report.case.dtype, runs=1)
    values = again.outputs.get(name)
    spoilt = report.metrics[name].nonfinite
    if values is None or not np.isfinite(values[spoilt]).all():
        return "overflow", ""
    return "unwritten", "finite where fresh memory holds zeros"


def _gradient_cause(report: CaseReport, check: Check) -> tuple[str, str]:
    """Gradients are read together: which are wrong, and under which cotangent."""
    op = op_of(report.case)
    wrong = {n for n, m in report.gradient_metrics.items() if m.wrong.any()}
    if any(m.wrong.any() for m in report.metrics.values()):
        return "gradient_follows", ""
    got = report.outcome.gradients
    if report.cotangent_kind == "final_state" and not any(
        g.any() for g in got.values()
    ):
        return "state_gradient_dropped", "all gradients are zero"
    if report.cotangent_kind == "dense" and _final_state_explains(report, wrong):
        return "state_gradient_dropped", ""
    spoilt = {n for n, m in report.gradient_metrics.items() if m.nonfinite.any()}
    if spoilt:
        return "gradient_overflow", f"not finite: {', '.join(sorted(spoilt))}"
    found = explain_gradients(report)
    if found is not None:
        return found.cause, found.detail
    gates = {"a", "g", "gk", "gv", "w", "delta", "dt", "A", "delta_bias", "dt_bias"}
    gates |= {"f", "i"}
    if wrong and wrong <= gates:
        return "gate_gradient", f"wrong: {', '.join(sorted(wrong))}"
    if wrong and wrong <= {*state_inputs(op)}:
        return "initial_state_gradient", ""
    return "gradient", f"wrong: {', '.join(sorted(wrong))}"


def _final_state_explains(report: CaseReport, wrong: set[str]) -> bool:
    """Whether the gradients are right for a final-state cotangent of zero."""
    from scancheck.oracles.fp64 import solve_fp64

    op = op_of(report.case)
    finals = {spec.name for spec in state_outputs(op)}
    given = report.cotangents or {}
    if not finals & {*given} or not wrong:
        return False
    bars = {n: v for n, v in given.items() if n not in finals}
    tensors, switches = report.inputs.tensors, report.inputs.switches
    solution = solve_fp64(op, tensors, switches, bars)
    for name in wrong:
        off = np.abs(report.outcome.gradients[name] - solution.gradients[name].value)
        if not (off <= report.gradient_metrics[name].allowance).all():
            return False
    return True


def _pattern_cause(
    kernel: Kernel, report: CaseReport, place: Place | None
) -> tuple[str, str]:
    """What the pattern of wrong tokens alone says."""
    op = op_of(report.case)
    first = op.outputs[0]
    metrics = report.metrics.get(first.name)
    # Of packed sequences, those in one place of a chunk are not those in another.
    if metrics is None or place is None or op.calling is not None:
        return "unknown", ""
    axis = first.axes.index(op.time_axis)
    for chunk in _chunks(kernel, place):
        if heals_inside_chunks(metrics.wrong, axis, chunk):
            return "in_place_scan", f"positions repeat in every chunk of {chunk}"
    if place.where == "carry":
        return "carry", f"first wrong at the edge of chunk {place.chunk}"
    return ("local" if place.token > 0 else "unknown"), ""


def passing_contracts(report: CaseReport, claimed: Contract) -> dict[str, bool]:
    """The wider contracts, narrowest first, under which a case's outputs would pass.

    The value says whether that means anything: an allowance as large as what it judges
    does not, and most of what was wrong must be judged by less than that.
    """
    op = op_of(report.case)
    tensors, switches = report.inputs.tensors, report.inputs.switches
    passing = {}
    for text in WIDER:
        contract = _widened(claimed, text)
        if contract is None:
            continue
        if "constant_decay" in text and not has_constant_decays(op):
            continue
        try:
            budget = budget_for(op, tensors, switches, contract, report.case.dtype)
        except CaseInvalid:  # no bound of the form for plain decays, of the op at all
            continue
        informed = _informed_pass(report, budget.outputs)
        if informed is not None:
            passing[text] = informed
    return passing


def _widened(claimed: Contract, text: str) -> Contract | None:
    """The claim with one field widened; None where that changes or means nothing."""
    name, _, _ = text.partition("=")
    try:
        contract = replace(claimed, **{name: getattr(parse_contract(text), name)})
    except CaseInvalid:
        return None
    return None if contract == claimed else contract


def _informed_pass(
    report: CaseReport, allowances: Mapping[str, Allowance]
) -> bool | None:
    """Whether a pass under other allowances is not vacuous; None where none passes."""
    wrong = informed = 0
    for name in report.metrics:
        reference, allowance = report.truth.outputs[name], allowances[name]
        found = measure(name, report.outcome.outputs[name], reference, allowance)
        if found.wrong.any() or found.excused.any():
            return None
        was_wrong = report.metrics[name].wrong
        wrong += int(was_wrong.sum())
        informed += int((was_wrong & ~found.vacuous).sum())
    return 2 * informed > wrong


def _shrinks(
    kernel: Kernel, report: CaseReport, request: Request, check: Check
) -> bool | None:
    """Whether the same check in fp64 passes, or errs less as rounding does.

    A form that amplifies rounding exceeds its budget in every format, but its error
    follows the unit roundoff; a fault keeps its size. The geometric mean of both tells
    them apart. None when the kernel does not take fp64.
    """
    if report.case.dtype == "fp64" or check.check not in ("oracle", "gradient"):
        return None
    case = replace(report.case, dtype="fp64")
    try:
        wide = check_case(kernel, case, request, cotangent_kind=report.cotangent_kind)
    except ScancheckError:
        return None
    if wide.outcome.problem is not None:
        return None
    again = [c for c in wide.checks if c.check == check.check]
    again = [c for c in again if c.tensor == check.tensor]
    if not again or again[0].verdict is Verdict.UNCERTIFIED:
        return None
    if again[0].verdict not in RED or Verdict.NONFINITE in (
        check.verdict,
        again[0].verdict,
    ):
        return again[0].verdict not in RED
    finer = FP64.unit_roundoff / format_named(report.case.dtype).unit_roundoff
    before, after = _largest_error(report, check), _largest_error(wide, check)
    return bool(after <= np.sqrt(finer) * before)


def _largest_error(report: CaseReport, check: Check) -> float:
    """Largest error of the check's tensor where it is finite."""
    gradient = check.check == "gradient"
    metrics = report.gradient_metrics if gradient else report.metrics
    error = metrics[str(check.tensor)].error
    return float(np.max(error, where=np.isfinite(error), initial=0.0))


def red_checks(report: CaseReport) -> Iterable[Check]:
    """The checks of a case that make it red, in order."""
    return (check for check in report.checks if check.verdict in RED)
