"""Known faults as experiments on the oracle: which one explains what a kernel returned?

Each hypothesis is the exact recurrence with one structural fault. If its outputs agree
with the kernel's within the budget wherever the truth does not, the fault is named with
confidence, for any op, and no kernel source is needed.
"""

from collections.abc import Callable, Iterable

import numpy as np

from scancheck.checks.agreement import (
    Explanation,
    agrees,
    agrees_wholly,
    singled_out,
)
from scancheck.checks.calling_faults import faults_of_calling
from scancheck.checks.carry_faults import Fault, faults_at_edges, time_first
from scancheck.checks.chunk_faults import faults_of_chunks, swapped_axes
from scancheck.checks.compensation_faults import faults_of_compensation
from scancheck.checks.faulty_recurrence import Outputs
from scancheck.checks.fitted_faults import fitted_faults
from scancheck.checks.head_faults import faults_of_heads
from scancheck.checks.input_faults import faults_of_inputs
from scancheck.checks.oracle import CaseReport
from scancheck.ops.calling import op_of


def explain(report: CaseReport, chunks: Iterable[int]) -> Explanation | None:
    """The one known fault that reproduces the outputs, or None.

    Where two faults would give the same outputs, neither is named. Those with a number
    fitted to the outputs are tried when nothing else fits.
    """
    if not any(m.wrong.any() for m in report.metrics.values()):
        return None
    truth = {n: t.hi for n, t in report.truth.outputs.items()}
    stale = _stale(report, truth)
    if stale:
        detail = f"{stale} element(s) hold the value of the token before"
        return Explanation(cause="local_element", chunk=None, detail=detail)
    sizes = list(chunks)
    if op_of(report.case).calling is not None:
        return _explain_call(report, truth, sizes)
    found = _fitting(report, None, faults_of_inputs(report, truth))
    found += _fitting(report, None, faults_of_heads(report, truth))
    found += _fitting(report, None, swapped_axes(report))
    found += _fitting(report, None, faults_of_compensation(report))
    for chunk in sizes:
        found += _fitting(report, chunk, faults_at_edges(report, truth, chunk))
        found += _fitting(report, chunk, faults_of_chunks(report, chunk))
    if not found:
        for chunk in sizes:
            found += _fitting(report, chunk, fitted_faults(report, truth, chunk))
    return singled_out(found)


def _explain_call(
    report: CaseReport, truth: Outputs, chunks: list[int]
) -> Explanation | None:
    """The fault of a call of several sequences; chunks of one alone say too little."""
    faults = list(faults_of_calling(report, chunks))
    found = _fitting(report, None, faults, agrees_wholly)
    found = found or _fitting(report, None, faults)
    if not found:
        found = _fitting(report, None, faults_of_inputs(report, truth))
        found += _fitting(report, None, faults_of_heads(report, truth))
    return singled_out(found)


def _fitting(
    report: CaseReport,
    chunk: int | None,
    faults: Iterable[Fault],
    fits: Callable[[CaseReport, Outputs], bool] = agrees,
) -> list[Explanation]:
    """The faults whose outputs are those of the kernel."""
    return [
        Explanation(cause=cause, chunk=chunk, detail=detail)
        for cause, detail, outputs in faults
        if fits(report, outputs)
    ]


def _stale(report: CaseReport, truth: Outputs) -> int:
    """Number of wrong elements when all of them repeat the token before; else 0."""
    name = op_of(report.case).outputs[0].name
    metrics = report.metrics.get(name)
    if metrics is None:
        return 0
    wrong = time_first(report, name, metrics.wrong)
    count = int(wrong.sum())
    if not 0 < count <= max(4, wrong.size // 100) or wrong[0].any():
        return 0
    got = time_first(report, name, report.outcome.outputs[name])
    before = np.roll(time_first(report, name, truth[name]), 1, axis=0)
    allowed = time_first(report, name, metrics.allowance)
    near = np.abs(got - before) <= 4.0 * (allowed + np.roll(allowed, 1, axis=0))
    return count if near[wrong].all() else 0
