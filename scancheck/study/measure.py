"""A case report to rows: what the report page needs to know of every tensor."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from scancheck.bounds.budget import budget_for, storage_dtype
from scancheck.checks.judging_device import judged_on
from scancheck.checks.oracle import CaseReport, Request, device_for_case
from scancheck.contract import Contract, resolve
from scancheck.formats import FORMATS, FloatArray, Format, round_array, ulp
from scancheck.kernel import Kernel
from scancheck.metrics import TensorMetrics, effective_bits
from scancheck.ops.calling import op_of
from scancheck.ops.normal_form import Op, spec_of
from scancheck.oracles.ladder import Reference
from scancheck.study.log_decay import log_decays
from scancheck.study.plan import Job, key_of
from scancheck.study.row import Row
from scancheck.verdict import Verdict, worst_verdict

BUCKETS = 128  # of tokens, in an error profile
BUCKETS_IN_CHUNK = 64
# Any order of the additions: its magnitudes are the sums M of numerics 2.2.
ANY_ORDER = Contract()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One tensor of a case with everything that is measured about it."""

    name: str  # d and the name of an input for a gradient
    metrics: TensorMetrics
    truth: Reference
    fmt: Format  # of the tensor
    chains_last: tuple[int, ...]  # axes in the order tokens, chains
    magnitude: FloatArray  # M, sums of magnitudes
    probable: FloatArray | None  # lambda u sqrt(v), where it is known


def rows_of(
    report: CaseReport, job: Job, kernel: Kernel, probable: Mapping[str, FloatArray]
) -> Iterator[Row]:
    """One row a tensor, then the profiles and lengths that the job keeps.

    `probable` holds the probable bound of outputs, where it is known.
    """
    op = op_of(report.case)
    for measured in _measured(op, report, job, probable):
        row = _case_row(op, report, job, kernel, measured)
        yield row
        if measured.name != op.outputs[0].name:
            continue
        if "length" in job.keep:
            yield replace(row, kind="length")
        if "position" in job.keep:
            yield from _position_rows(row, measured)
        if "in_chunk" in job.keep and row.chunk is not None:
            yield from _in_chunk_rows(row, row.chunk, measured)


def _measured(
    op: Op, report: CaseReport, job: Job, probable: Mapping[str, FloatArray]
) -> Iterator[Measured]:
    """Every tensor that the kernel returned; outputs first, in the op's order."""
    inputs, dtype = report.inputs, report.case.dtype
    request = Request(contract=ANY_ORDER, device=job.device)
    given = op, inputs.tensors, inputs.switches, ANY_ORDER, dtype, report.cotangents
    sums = judged_on(
        device_for_case(op, report.case, request),
        lambda device: budget_for(*given, device=device),
    ).found
    for prefix, found, truths, magnitudes in (
        ("", report.metrics, report.truth.outputs, sums.outputs),
        ("d", report.gradient_metrics, report.truth.gradients, sums.gradients),
    ):
        for name, metrics in found.items():
            rank = metrics.error.ndim
            axes = spec_of(op, name, rank).axes
            time = [axes.index(op.time_axis)] if op.time_axis in axes else []
            yield Measured(
                name=prefix + name,
                metrics=metrics,
                truth=truths[name],
                fmt=FORMATS[storage_dtype(op, name, dtype, rank)],
                chains_last=(*time, *(i for i in range(rank) if i not in time)),
                magnitude=magnitudes[name].magnitude,
                probable=None if prefix else probable.get(name),
            )


def _chains(measured: Measured, values: FloatArray) -> FloatArray:
    """[tokens, chains]; a tensor without tokens is one chain of all its elements."""
    ordered = values.transpose(measured.chains_last)
    if len(measured.chains_last) < 3:
        return ordered.reshape(-1, 1)
    return ordered.reshape(len(ordered), -1)


def _scale(measured: Measured) -> FloatArray:
    """RMS of every true chain, [chains]; NaN for one that is zero throughout."""
    truth = _chains(measured, measured.truth.hi)
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.sqrt(np.mean(np.where(np.isfinite(truth), truth, 0.0) ** 2, axis=0))
    return np.where(size > 0.0, size, np.nan)


def relative_rms(measured: Measured, error: FloatArray) -> float | None:
    """RMS over chains of an error's RMS over that of the true chain.

    Elements without a finite error, and chains that are zero, do not count.
    """
    return _rms(_chains(measured, error) / _scale(measured))


def _rms(values: FloatArray) -> float | None:
    kept = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(kept**2))) if kept.size else None


def _largest(values: FloatArray) -> float | None:
    kept = values[np.isfinite(values)]
    return float(kept.max()) if kept.size else None


def _case_row(
    op: Op, report: CaseReport, job: Job, kernel: Kernel, measured: Measured
) -> Row:
    case, way = report.case, job.configuration
    metrics, scale = measured.metrics, _scale(measured)
    error = np.where(np.isfinite(metrics.error), metrics.error, np.nan)
    hi = measured.truth.hi
    fmt = measured.fmt
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        floor = np.abs(round_array(fmt, hi) - hi)
        in_ulp = error / ulp(fmt, hi)
        over_uM = error / (FORMATS[case.dtype].unit_roundoff * measured.magnitude)
        budget = _chains(measured, metrics.allowance) / scale
    verdict, reason, rho = _verdict(report, measured.name)
    sizes = dict(case.sizes)
    contract = resolve(kernel.contract or Contract(), case.dtype)
    probable = measured.probable
    mean_log, strongest_log = log_decays(case.op, report.inputs)
    return Row(
        kind="case",
        section=job.section,
        job=key_of(job),
        op=case.op,
        kernel=kernel.name,
        algorithm=way.algorithm,
        variant=way.variant,
        storage=case.dtype,
        compute=contract.compute,
        state=contract.state,
        chunk=way.chunk,
        T=sizes[op.time_axis],
        B=sizes["B"],
        D=sizes["D"],
        N=sizes.get("N"),
        recipe=case.recipe,
        form=job.form,
        seed=case.seed,
        cotangent=job.cotangent,
        case_id=case.id,
        tensor=measured.name,
        sequence=measured.name == op.outputs[0].name,
        verdict=verdict,
        reason=reason,
        values=metrics.error.size,
        max_ratio=_largest(metrics.ratio),
        rms_rel=relative_rms(measured, error),
        floor_rel=relative_rms(measured, floor),
        max_rel=_largest(_chains(measured, error) / scale),
        max_ulp=_largest(in_ulp),
        rms_ulp=_rms(_chains(measured, error) / ulp(fmt, scale)),
        err_over_uM=_largest(over_uM),
        effective_bits=_number(effective_bits(metrics, measured.truth)),
        vacuous_share=float(metrics.vacuous.mean()) if metrics.vacuous.size else None,
        nonfinite=int((~np.isfinite(metrics.error)).sum()),
        rho=_number(rho),
        max_budget_rel=_largest(budget),
        probable_rel=(
            None if probable is None else _largest(_chains(measured, probable) / scale)
        ),
        log_decay=_number(mean_log),
        strongest_log_decay=_number(strongest_log),
        bits=_bits(report, measured.name) if job.section == "device" else None,
    )


def _bits(report: CaseReport, tensor: str) -> str:
    """A digest of the kernel's values; every NaN counts as the same."""
    values = report.outcome.outputs.get(tensor)
    if values is None:
        values = report.outcome.gradients[tensor.removeprefix("d")]
    alike = np.where(np.isnan(values), np.nan, values)
    return hashlib.sha256(alike.tobytes()).hexdigest()[:16]


def _number(value: float | None) -> float | None:
    """The value, or None where it is not finite."""
    return value if value is not None and np.isfinite(value) else None


def _verdict(report: CaseReport, tensor: str) -> tuple[Verdict, str, float | None]:
    """Verdict, reason and rho of the checks on one tensor, and on the call itself."""
    name, wanted = tensor, {"oracle", "repeat"}
    if tensor not in report.metrics:
        name, wanted = tensor.removeprefix("d"), {"gradient", "repeat"}
    checks = [
        check
        for check in report.checks
        if check.tensor is None or (check.tensor == name and check.check in wanted)
    ]
    worst = worst_verdict(check.verdict for check in checks)
    reason = next((c.reason for c in checks if c.verdict is worst), "")
    rho = next((c.rho for c in checks if c.rho is not None), None)
    return worst, reason, rho


def _position_rows(row: Row, measured: Measured) -> Iterator[Row]:
    """The RMS error of every bucket of tokens, in units of the chain's RMS truth."""
    relative, in_ulp = _relative_errors(measured)
    width = -(-len(relative) // BUCKETS)
    for start in range(0, len(relative), width):
        here = slice(start, start + width)
        yield _bucket(row, "position", start, relative[here], in_ulp[here])


def _in_chunk_rows(row: Row, chunk: int, measured: Measured) -> Iterator[Row]:
    """The same of every bucket of positions, over all whole chunks of the sequence."""
    relative, in_ulp = _relative_errors(measured)
    whole = len(relative) - len(relative) % chunk
    if not whole:
        return
    width = -(-chunk // BUCKETS_IN_CHUNK)
    places = (-1, chunk, relative.shape[1])
    relative = relative[:whole].reshape(places)
    in_ulp = in_ulp[:whole].reshape(places)
    for start in range(0, chunk, width):
        here = slice(start, start + width)
        found = _bucket(row, "in_chunk", start, relative[:, here], in_ulp[:, here])
        yield replace(found, tokens=min(width, chunk - start))


def _relative_errors(measured: Measured) -> tuple[FloatArray, FloatArray]:
    """Errors over the RMS of the true chain and in ulp there, [tokens, chains]."""
    error = np.where(
        np.isfinite(measured.metrics.error), measured.metrics.error, np.nan
    )
    scale = _scale(measured)
    chains = _chains(measured, error)
    return chains / scale, chains / ulp(measured.fmt, scale)


def _bucket(
    row: Row, kind: str, start: int, relative: FloatArray, in_ulp: FloatArray
) -> Row:
    return replace(
        row,
        kind=kind,
        rms_rel=_rms(relative),
        rms_ulp=_rms(in_ulp),
        max_rel=_largest(relative),
        token=start,
        tokens=len(relative),
    )
