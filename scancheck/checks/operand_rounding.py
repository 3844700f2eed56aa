"""Operands that are cut before they are multiplied, told by the errors they leave.

Rounding the decays alone makes a known error at every element. What else is rounded is
independent of it: where the kernel's errors hold that known error once, the decays were
rounded before use, and not only the state stored short.
"""

from collections.abc import Callable

import numpy as np

from scancheck.checks.agreement import Explanation, FloatArray
from scancheck.checks.faulty_recurrence import OtherDecays, run
from scancheck.checks.oracle import CaseReport
from scancheck.formats import BF16, TF32, Format, round_array
from scancheck.ops.calling import op_of
from scancheck.ops.normal_form import Lowered

TELLING = 64  # wrong elements, at least
LEAST_CORRELATION = 0.4  # as much is left when the state is rounded as often
SHARES = (0.6, 1.5)  # of the known error that is found in the kernel's


def _rounding(fmt: Format) -> Callable[[Lowered, int], FloatArray]:
    return lambda lowered, start: round_array(fmt, lowered.w.value)


def explain_operands(report: CaseReport) -> Explanation | None:
    """The format that decays are rounded to beside other operands, or None."""
    name = op_of(report.case).outputs[0].name
    metrics = report.metrics.get(name)
    if metrics is None or int(metrics.wrong.sum()) < TELLING:
        return None
    for fmt in (TF32, BF16):
        other = run(report, OtherDecays(_rounding(fmt)))[name]
        truth = report.truth.outputs[name].hi
        usable = np.isfinite(report.outcome.outputs[name]) & (metrics.allowance > 0.0)
        allowed = metrics.allowance[usable]
        known = (other - truth)[usable] / allowed
        error = (report.outcome.outputs[name] - truth)[usable] / allowed
        size = float(known @ known)
        if size == 0.0:
            continue
        share = float(known @ error) / size
        correlation = float(known @ error) / np.sqrt(size * float(error @ error))
        if correlation >= LEAST_CORRELATION and SHARES[0] <= share <= SHARES[1]:
            detail = f"its errors follow those of decays rounded to {fmt.name}"
            return Explanation(cause="short_compute", chunk=None, detail=detail)
    return None
