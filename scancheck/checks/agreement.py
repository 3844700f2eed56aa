"""Whether a hypothesis gives what a kernel gave, within the budget."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.budget import Allowance
from scancheck.checks.oracle import CaseReport
from scancheck.metrics import TensorMetrics
from scancheck.ops.calling import op_of

FloatArray = NDArray[np.float64]

# A hypothesis holds when all but this share of the elements that are wrong against the
# truth are right against it; the rest leaves room for a second, smaller fault.
SHARE_LEFT = 0.02
# Errors that are about as large as their budgets are near to anything: of what is wrong
# a hypothesis must take away all but this share.
ERROR_LEFT = 0.25
# Nor may it make more than this share of all elements wrong that the kernel has right.
SHARE_SPOILT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A fault that reproduces what the kernel gave."""

    cause: str  # key of diagnosis.CAUSES
    chunk: int | None  # chunk size under which it does
    detail: str  # what was found, in words


def singled_out(found: list[Explanation]) -> Explanation | None:
    """The first of the explanations when all name one cause, else None."""
    return found[0] if len({one.cause for one in found}) == 1 else None


def agrees(report: CaseReport, outputs: dict[str, FloatArray]) -> bool:
    """Whether the kernel's outputs are those of the hypothesis, within the budget.

    The sequence output decides where it is wrong, else the final state: a fault may
    meet the last chunk in another way than the ones before.
    """
    for spec in op_of(report.case).outputs:
        metrics = report.metrics.get(spec.name)
        if metrics is not None and metrics.wrong.any():
            return _output_agrees(report, spec.name, outputs)
    return False


def agrees_wholly(report: CaseReport, outputs: dict[str, FloatArray]) -> bool:
    """Whether every wrong output of the kernel is that of the hypothesis."""
    wrong = [n for n, m in report.metrics.items() if m.wrong.any()]
    return bool(wrong) and all(_output_agrees(report, n, outputs) for n in wrong)


def _output_agrees(
    report: CaseReport, name: str, outputs: dict[str, FloatArray]
) -> bool:
    return tensor_agrees(
        report.outcome.outputs[name],
        report.truth.outputs[name].hi,
        outputs[name],
        report.metrics[name],
        report.budget.outputs[name],
    )


def gradients_agree(report: CaseReport, gradients: dict[str, FloatArray]) -> bool:
    """Whether every wrong gradient is one of the hypothesis, within the budget."""
    wrong = [n for n, m in report.gradient_metrics.items() if m.wrong.any()]
    return bool(wrong) and all(
        name in gradients
        and tensor_agrees(
            report.outcome.gradients[name],
            report.truth.gradients[name].hi,
            gradients[name],
            report.gradient_metrics[name],
            report.budget.gradients[name],
        )
        for name in wrong
    )


def tensor_agrees(
    got: FloatArray,
    truth: FloatArray,
    other: FloatArray,
    metrics: TensorMetrics,
    allowance: Allowance,
) -> bool:
    """Whether `other` is what was got, and the truth is not, up to roundings."""
    wrong = metrics.wrong
    # A faulty state can be larger than the true one, and so are its roundings.
    relative = 2.0**-18 + 2.0 * allowance.storage_u
    with np.errstate(invalid="ignore", over="ignore"):
        slack = relative * (np.abs(other) + np.abs(truth))
        off = ~(np.abs(got - other) <= 4.0 * metrics.allowance + slack)
        if int((off & ~wrong).sum()) > SHARE_SPOILT * wrong.size:
            return False
        if int((off & wrong).sum()) > SHARE_LEFT * int(wrong.sum()):
            return False
        scale = (metrics.allowance + slack)[wrong]
        left = _distance((got - other)[wrong], scale)
        return left <= ERROR_LEFT * _distance((got - truth)[wrong], scale)


def _distance(error: FloatArray, scale: FloatArray) -> float:
    """The sum of errors in units of `scale`, each counted up to a thousand."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0.0, 0.0, np.abs(error) / scale)
    return float(np.where(ratio < 1e3, ratio, 1e3).sum())
