"""Known faults of a backward pass, as experiments on the oracle's adjoint."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from scancheck.checks.agreement import Explanation, FloatArray, gradients_agree
from scancheck.checks.digits import short_format
from scancheck.checks.input_faults import SOFTPLUS_SUM
from scancheck.checks.oracle import CaseReport
from scancheck.checks.step_sizes import (
    STEP_SIZES,
    by_sum,
    shared_axes,
    softplus_argument,
    with_steps,
)
from scancheck.formats import FP32, FP64
from scancheck.ops.calling import op_of
from scancheck.ops.normal_form import Cotangents, Lowered, spec_of
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System

Gradients = dict[str, FloatArray]
STEPS: tuple[str, ...] = ("delta", "delta_bias")  # all that the step size is made of


class OtherCotangents(Fp64System):
    """The oracle's adjoint with a part of the cotangents of w and v left out."""

    def __init__(self, *, w: float = 1.0, v: float = 1.0) -> None:
        super().__init__()
        self.w, self.v = w, v

    def adjoint(
        self,
        lowered: Lowered,
        states: Any,
        obar: Any,
        carry: Any,
        start: int,
        total: int,
    ) -> tuple[Cotangents, Any]:
        """The cotangents of a tile, scaled by what is kept."""
        bars, carry = super().adjoint(lowered, states, obar, carry, start, total)
        kept = Cotangents(
            w=_times(self.w, bars.w), v=_times(self.v, bars.v), k=bars.k, r=bars.r
        )
        return kept, carry


def _times(factor: float, number: Any) -> Any:
    return number.like(factor * number.value, number.radius)


def explain_gradients(report: CaseReport) -> Explanation | None:
    """The known fault of a backward pass that explains all wrong gradients, or None."""
    wrong = [n for n, m in report.gradient_metrics.items() if m.wrong.any()]
    if not wrong or report.cotangents is None:
        return None
    for cause, detail, gradients in _pullbacks(report):
        if gradients_agree(report, gradients):
            return Explanation(cause=cause, chunk=None, detail=detail)
    for search in (_zero, _clamped, _short, _cancelled):
        found = search(report, wrong)
        if found is not None:
            return found
    return None


def _pullbacks(report: CaseReport) -> Iterator[tuple[str, str, Gradients]]:
    """Gradients of the step, of silu and of one row, as backward passes forget them."""
    tensors = report.inputs.tensors
    if "delta" in tensors:
        for part, system in (
            ("the drive", OtherCotangents(v=0.0)),
            ("the decay", OtherCotangents(w=0.0)),
        ):
            solved = _solved(report, system)
            steps = {n: solved[n] for n in STEPS if n in solved}
            yield "step_gradient", f"the part through {part} is missing", steps
    x = softplus_argument(report)
    if x is not None:
        yield "softplus_sum", SOFTPLUS_SUM, _of_softplus_by_sum(report, x)
    if "z" in tensors:
        yield "silu_gradient", "the slope of silu(z) is sigmoid(z)", _by_sigmoid(report)
    padded = (calling := op_of(report.case).calling) and calling.lengths is not None
    rows = 1 if padded else dict(report.case.sizes)["B"]
    for row in sorted({0, rows - 1}) if rows > 1 else []:
        yield (
            "gradient_row",
            f"the sum holds batch row {row} alone",
            _of_row(report, row),
        )


def _solved(report: CaseReport, system: Fp64System) -> Gradients:
    solution = solve(
        system,
        op_of(report.case),
        report.inputs.tensors,
        report.inputs.switches,
        report.cotangents,
    )
    return {name: ball.value for name, ball in solution.gradients.items()}


def _of_softplus_by_sum(report: CaseReport, x: FloatArray) -> Gradients:
    """Gradients of steps log(1 + exp(x)): those of x are theirs times sigmoid(x)."""
    names, inputs = STEP_SIZES[report.case.op], with_steps(report, by_sum(x))
    op = op_of(report.case)
    system = Fp64System()
    solution = solve(system, op, inputs.tensors, inputs.switches, report.cotangents)
    found = {name: ball.value for name, ball in solution.gradients.items()}
    found[names.step] = found[names.step] / (1.0 + np.exp(-x))
    return found | {names.bias: found[names.step].sum(shared_axes(report, names))}


def _by_sigmoid(report: CaseReport) -> Gradients:
    """dz = ybar (C . h + D u) sigmoid(z)."""
    op = op_of(report.case)
    first = op.outputs[0].name
    tensors = {n: v for n, v in report.inputs.tensors.items() if n != "z"}
    solution = solve(Fp64System(), op, tensors, report.inputs.switches)
    z = report.inputs.tensors["z"]
    bar = (report.cotangents or {}).get(first, np.zeros_like(z))
    sigmoid = 1.0 / (1.0 + np.exp(-z))
    return {"z": bar * solution.outputs[first].value * sigmoid}


def _of_row(report: CaseReport, row: int) -> Gradients:
    """Gradients of the tensors without a batch axis, from one row of the batch."""
    op = op_of(report.case)

    def cut(values: dict[str, FloatArray]) -> dict[str, FloatArray]:
        return {
            name: x[row : row + 1] if spec_of(op, name, x.ndim).axes[0] == "B" else x
            for name, x in values.items()
        }

    tensors = cut(report.inputs.tensors)
    bars = cut(report.cotangents or {})
    solution = solve(Fp64System(), op, tensors, report.inputs.switches, bars)
    return {
        name: ball.value
        for name, ball in solution.gradients.items()
        if spec_of(op, name, tensors[name].ndim).axes[0] != "B"
    }


def _zero(report: CaseReport, wrong: list[str]) -> Explanation | None:
    """Inputs that no gradient reaches."""
    if any(report.outcome.gradients[name].any() for name in wrong):
        return None
    if wrong == [op_of(report.case).state]:
        cause = "initial_state_gradient"
    else:
        cause = "gradient_missing"
    detail = f"all zero: {', '.join(sorted(wrong))}"
    return Explanation(cause=cause, chunk=None, detail=detail)


def _clamped(report: CaseReport, wrong: list[str]) -> Explanation | None:
    """Gradients that are zero just where their input is beyond some limit."""
    for name in wrong:
        got, x = report.outcome.gradients[name], report.inputs.tensors[name]
        bad = report.gradient_metrics[name].wrong
        right = ~bad & (got != 0.0)
        if got[bad].any() or not right.any():
            return None
        below = float(x[bad].max()) < float(x[right].min())
        above = float(x[bad].min()) > float(x[right].max())
        if not below and not above:
            return None
    side = "below" if below else "above"
    limit = float(x[bad].max() if below else x[bad].min())
    detail = f"zero where {wrong[-1]} is {side} a limit near {limit:.4g}"
    return Explanation(cause="gradient_clamped", chunk=None, detail=detail)


def _short(report: CaseReport, wrong: list[str]) -> Explanation | None:
    """Gradients whose values have the digits of a shorter format than their own."""
    for name in wrong:
        got = report.outcome.gradients[name]
        fmt = short_format(report, name, got, report.truth.gradients[name].hi)
        if fmt is not None:
            detail = f"every value of the gradient of {name} fits {fmt}"
            return Explanation(cause="short_gradient", chunk=None, detail=detail)
    return None


def _cancelled(report: CaseReport, wrong: list[str]) -> Explanation | None:
    """A gate gradient with the roundings of a sum over the whole sequence.

    d log a_t is the sum of s = h hbar - b G over t and all later tokens (numerics 2.9),
    and da_t that over a_t. A reverse sum has roundings of its own terms; formed as
    total minus prefix it has those of all terms, which this allows and no more.
    """
    tensors = report.inputs.tensors
    forms = op_of(report.case).forms
    if frozenset(wrong) not in forms or report.cotangents is None:
        return None
    if op_of(report.case).calling is not None:
        return None
    name = wrong[0]
    h_bar = report.cotangents.get("h", np.zeros_like(tensors["b"]))
    h, adjoint = report.truth.outputs["h"].hi, report.truth.gradients["b"].hi
    size = np.abs(h * h_bar) + np.abs(tensors["b"] * adjoint)
    if "final_state" in report.cotangents:
        size[:, -1] += np.abs(h[:, -1] * report.cotangents["final_state"])
    total = size.sum(axis=1, keepdims=True)
    u = (FP64 if report.case.dtype == "fp64" else FP32).unit_roundoff
    error = np.abs(report.outcome.gradients[name] - report.truth.gradients[name].hi)
    log_error = error * np.abs(tensors["a"]) if name == "a" else error
    stored = report.gradient_metrics[name].allowance
    steps = h.shape[1]
    bad = report.gradient_metrics[name].wrong
    if (log_error > steps * u * total + stored)[bad].any():
        return None
    detail = "its errors are roundings of a sum over the whole sequence"
    return Explanation(cause="gradient_cancelled", chunk=None, detail=detail)
