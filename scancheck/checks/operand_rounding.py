"""Operands that are cut before they are multiplied, told by the errors they leave.

Rounding the decays alone makes a known error at every element. What else is rounded is
independent of it: where the kernel's errors hold that known error once, the decays were
rounded before use, and not only the state stored short.

Where chunks are matrix products, keys and values are what is cut. In the final state of
few tokens that leaves nearly the whole error, and digits as if the state were in fp16,
whose precision is TF32's.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from scancheck.checks.agreement import Explanation, FloatArray
from scancheck.checks.faulty_recurrence import OtherDecays, OtherWrites, run
from scancheck.checks.oracle import CaseReport
from scancheck.formats import BF16, FP32, TF32, Format, round_array
from scancheck.ops.calling import op_of
from scancheck.ops.normal_form import Lowered, state_outputs

TELLING = 64  # wrong elements, at least
LEAST_CORRELATION = 0.4  # as much is left when the state is rounded as often
SHARES = (0.6, 1.5)  # of the known error that is found in the kernel's
MOST_LEFT = 0.5  # of the RMS error once the known one is taken off


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


def explain_writes(report: CaseReport) -> Explanation | None:
    """TF32, where keys and values cut to it explain most of the final state's error."""
    op = op_of(report.case)
    final = state_outputs(op)[0].name
    metrics = report.metrics.get(final)
    short = not op.matrix_products or report.case.dtype != "fp32"
    if metrics is None or short or not metrics.wrong.any():
        return None
    truth, got = report.truth.outputs[final].hi, report.outcome.outputs[final]
    usable = np.isfinite(got) & (metrics.allowance > 0.0)
    allowed = metrics.allowance[usable]
    error = (got - truth)[usable] / allowed
    for how, cut in (("rounded", partial(round_array, TF32)), ("cut off", _cut_off)):
        known = (run(report, OtherWrites(cut))[final] - truth)[usable] / allowed
        if np.linalg.norm(error - known) <= MOST_LEFT * np.linalg.norm(error):
            detail = f"its errors are those of keys and values {how} to tf32"
            return Explanation(cause="short_compute", chunk=None, detail=detail)
    return None


def _cut_off(x: FloatArray) -> FloatArray:
    """TF32 as tensor cores read fp32: its bits beyond those of TF32 left out."""
    beyond = FP32.precision - TF32.precision
    bits = x.astype(np.float32).view(np.uint32) >> beyond << beyond
    return bits.view(np.float32).astype(np.float64)
