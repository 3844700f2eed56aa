"""Intermediate results that leave the range of fp32, told by where they do.

Each fault says which outputs cannot be finite; it is named where those are the ones
that are not.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.checks.agreement import Explanation, FloatArray, singled_out
from scancheck.checks.carry_faults import time_first
from scancheck.checks.faulty_recurrence import spans, steps_in
from scancheck.checks.oracle import CaseReport
from scancheck.checks.step_sizes import softplus_argument, with_steps
from scancheck.formats import FP32, format_named, round_array
from scancheck.kernel import Kernel
from scancheck.ops.calling import op_of
from scancheck.oracles.fp64 import Fp64System
from scancheck.recipes.inputs import case_sizes
from scancheck.runner import execute

Mask = NDArray[np.bool_]

LOG_LARGEST = float(np.log(FP32.largest))  # 88.7: exp of more overflows in fp32
# Where an exponent comes close to the limit, its rounding decides.
SHARE_MISSED = 0.1


def explain_nonfinite(
    kernel: Kernel, report: CaseReport, chunks: Iterable[int]
) -> Explanation | None:
    """The one overflow that spoils just those outputs that are not finite, or None.

    Strong decay comes with large steps: softplus is at fault only where the kernel is
    finite when it is given the steps themselves.
    """
    name = op_of(report.case).outputs[0].name
    metrics = report.metrics.get(name)
    if metrics is None or not metrics.nonfinite.any():
        return None
    got = time_first(report, name, metrics.nonfinite)
    found = []
    for chunk in (None, *chunks):
        faults = _softplus(report) if chunk is None else _decays(report, chunk)
        for cause, detail, predicted in faults:
            missed = int((time_first(report, name, predicted) != got).sum())
            if missed <= SHARE_MISSED * int(got.sum()):
                found.append(Explanation(cause=cause, chunk=chunk, detail=detail))
    if found and found[0].cause == "softplus_overflow":
        if finite_without_softplus(kernel, report):
            return found[0]
        del found[0]
    return singled_out(found)


def finite_without_softplus(kernel: Kernel, report: CaseReport) -> bool:
    """Whether the kernel's outputs are finite when softplus is taken outside it."""
    x = softplus_argument(report)
    if x is None:
        return False
    op = op_of(report.case)
    fmt = format_named(report.case.dtype)
    inputs = with_steps(report, round_array(fmt, np.logaddexp(x, 0.0)))
    outcome = execute(kernel, op, inputs, report.case.dtype, runs=1)
    return bool(outcome.outputs) and all(
        np.isfinite(values).all() for values in outcome.outputs.values()
    )


def _softplus(report: CaseReport) -> Iterator[tuple[str, str, Mask]]:
    """exp(x) of softplus(x): from its overflow on, the state is not finite."""
    x = softplus_argument(report)
    if x is None:
        return
    beyond = np.logical_or.accumulate(x > LOG_LARGEST, axis=_time_axis(report))
    first = report.truth.outputs[op_of(report.case).outputs[0].name].hi
    # Lanes of a head have one step size.
    more = tuple(range(beyond.ndim, first.ndim))
    yield (
        "softplus_overflow",
        f"not finite from the first x = step + bias above {LOG_LARGEST:.1f} on",
        np.broadcast_to(np.expand_dims(beyond, more), first.shape),
    )


def _time_axis(report: CaseReport) -> int:
    """Of the op's first output, and of what has one step size for its lanes."""
    op = op_of(report.case)
    return op.outputs[0].axes.index(op.time_axis)


def _decays(report: CaseReport, chunk: int) -> Iterator[tuple[str, str, Mask]]:
    """Exponentials of sums of log decays with the wrong sign."""
    op, system = op_of(report.case), Fp64System()
    given = report.inputs.tensors | op.constants(case_sizes(report.case))
    tile: dict[str, Any] = {n: system.constant(v) for n, v in given.items()}
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        tile |= dict(report.inputs.switches)
        if op.running is not None:
            tile |= op.running.find(tile)
        lowered, _ = op.lower(tile, None)
        if lowered.log_w is not None:
            log_w = lowered.log_w.value
        else:
            log_w = np.log(np.abs(lowered.w.value))
        inverse, masked = [], []
        for first, last in spans(lowered, 0, steps_in(report, chunk)):
            sums = np.cumsum(log_w[:, first:last], axis=1)
            inverse.append(-sums > LOG_LARGEST)
            least = np.minimum.accumulate(sums[:, ::-1], axis=1)[:, ::-1]
            masked.append(sums - least > LOG_LARGEST)
    spoilt = np.logical_or.accumulate(np.concatenate(inverse, 1), axis=1)
    for cause, detail, mask in (
        (
            "inverse_decay",
            f"not finite from where the decay over a chunk of {chunk} is below "
            f"exp(-{LOG_LARGEST:.1f})",
            spoilt,
        ),
        (
            "masked_overflow",
            f"not finite where a later token of a chunk of {chunk} has decayed below "
            f"exp(-{LOG_LARGEST:.1f})",
            np.concatenate(masked, 1),
        ),
    ):
        lanes = np.broadcast_to(mask.any(axis=2), lowered.v.shape).astype(np.float64)
        bare = {n: v for n, v in tile.items() if n not in ("D", "z")}
        yield cause, detail, _in_layout(report, bare, lanes)


def _in_layout(report: CaseReport, tile: dict[str, Any], lanes: FloatArray) -> Mask:
    """[G, T, L] in the layout of the sequence output: the epilogue without gates."""
    number = Fp64System().constant(np.ascontiguousarray(lanes))
    return np.asarray(op_of(report.case).epilogue(tile, number).value != 0.0)
