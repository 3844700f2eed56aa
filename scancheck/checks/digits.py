"""Formats that values betray by their digits: what is stored short, has few of them."""

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.budget import storage_dtype
from scancheck.checks.agreement import Explanation, FloatArray
from scancheck.checks.oracle import CaseReport
from scancheck.formats import BF16, FP16, Format, format_named, round_array
from scancheck.ops.calling import op_of

SHORT = (BF16, FP16)
# A value of fp32 fits fp16 by chance once in 2**13; a few of them are evidence.
TELLING = 6
SHARE_CHANCE = 0.25  # of the true values may fit as well, as small integers do


def short_format(
    report: CaseReport, name: str, got: FloatArray, truth: FloatArray
) -> str | None:
    """A format shorter than the tensor's that holds every value got, or None.

    The truth, rounded to the tensor's format, must not fit it as well.
    """
    op = op_of(report.case)
    stored = format_named(storage_dtype(op, name, report.case.dtype, got.ndim))
    telling = np.isfinite(got) & (got != 0.0)
    if int(telling.sum()) < TELLING:
        return None
    values, exact = got[telling], round_array(stored, truth[telling])
    for fmt in SHORT:
        if fmt.precision >= stored.precision or not _fits(fmt, values).all():
            continue
        if float(_fits(fmt, exact).mean()) <= SHARE_CHANCE:
            return fmt.name
    return None


def _fits(fmt: Format, values: FloatArray) -> NDArray[np.bool_]:
    return np.asarray(round_array(fmt, values) == values)


def explain_digits(report: CaseReport) -> Explanation | None:
    """A short state or sequence output, told by the digits of what was returned."""
    sequence, *finals = (spec.name for spec in op_of(report.case).outputs)
    found = {}
    for name, metrics in report.metrics.items():
        if metrics.wrong.any():
            got, truth = report.outcome.outputs[name], report.truth.outputs[name].hi
            found[name] = short_format(report, name, got, truth)
    for final in finals:
        if found.get(final) is not None:
            detail = f"every value of {final} fits {found[final]}"
            return Explanation(cause="short_state", chunk=None, detail=detail)
    if found.get(sequence) is not None:
        detail = f"every value of {sequence} fits {found[sequence]}"
        return Explanation(cause="short_output", chunk=None, detail=detail)
    return None
