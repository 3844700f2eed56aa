"""Step sizes softplus(x + bias), as they are and as kernels may form them."""

from typing import NamedTuple

import numpy as np

from scancheck.checks.agreement import FloatArray
from scancheck.checks.oracle import CaseReport
from scancheck.formats import FP32, Format, round_array
from scancheck.ops.calling import op_of
from scancheck.ops.normal_form import spec_of
from scancheck.recipes.inputs import Inputs

THRESHOLD = 20.0  # of the frameworks: softplus(x) is x above


class StepSize(NamedTuple):
    """The names of a step size, its bias and the switch of softplus."""

    step: str
    bias: str
    switch: str


STEP_SIZES = {
    "selective_scan": StepSize("delta", "delta_bias", "delta_softplus"),
    "ssd": StepSize("dt", "dt_bias", "dt_softplus"),
}


def softplus_argument(
    report: CaseReport, fmt: Format | None = None
) -> FloatArray | None:
    """Step plus bias, in the step's layout, where the case applies softplus.

    In a format bias and sum are rounded to it.
    """
    names = STEP_SIZES.get(report.case.op)
    tensors, switches = report.inputs.tensors, report.inputs.switches
    if names is None or not switches.get(names.switch):
        return None
    step = tensors[names.step]
    if names.bias not in tensors:
        return step
    bias = np.expand_dims(tensors[names.bias], shared_axes(report, names))
    if fmt is None:
        return step + bias
    return round_array(fmt, step + round_array(fmt, bias))


def shared_axes(report: CaseReport, names: StepSize) -> tuple[int, ...]:
    """The axes of a step size along which its bias is the same."""
    op = op_of(report.case)
    axes = spec_of(op, names.step, report.inputs.tensors[names.step].ndim).axes
    own = spec_of(op, names.bias, 1).axes
    return tuple(i for i, axis in enumerate(axes) if axis not in own)


def with_steps(report: CaseReport, steps: FloatArray) -> Inputs:
    """The case with step sizes that are given, without bias and softplus."""
    names = STEP_SIZES[report.case.op]
    tensors = {n: v for n, v in report.inputs.tensors.items() if n != names.bias}
    switches = dict(report.inputs.switches) | {names.switch: False}
    return Inputs(tensors=tensors | {names.step: steps}, switches=switches)


def by_sum(x: FloatArray) -> FloatArray:
    """log(1 + exp(x)) with the sum rounded to fp32, up to the threshold."""
    low = np.log(round_array(FP32, 1.0 + np.exp(np.minimum(x, THRESHOLD))))
    return np.where(x > THRESHOLD, x, low)


def in_format(report: CaseReport, fmt: Format) -> FloatArray | None:
    """Step sizes of which all is rounded to a format, or None without softplus."""
    x = softplus_argument(report, fmt)
    return None if x is None else round_array(fmt, np.logaddexp(x, 0.0))
