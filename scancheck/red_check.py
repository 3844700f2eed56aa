"""A check that failed, and the finding that tells of it."""

import re
from dataclasses import asdict, dataclass
from typing import Any

from scancheck.case import case_to_json
from scancheck.checks.experiments import Diagnosis
from scancheck.checks.oracle import CaseReport, Request
from scancheck.checks.step_by_step import step_by_step
from scancheck.diagnosis import Place
from scancheck.kernel import Kernel
from scancheck.ops.calling import op_of
from scancheck.recipes.catalog import profile_of
from scancheck.record import Finding
from scancheck.verdict import Check

# In what kernels raise for tensors on the CPU, or where no driver is.
ASKS_FOR_A_GPU = re.compile(r"cuda|triton|nvidia|\bgpu", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedCheck:
    """A check that failed, with all that is needed to look into it."""

    kernel: Kernel
    report: CaseReport
    check: Check
    request: Request


def finding_of(
    item: RedCheck, diagnosis: Diagnosis, *, replay: str, cases: int = 1
) -> Finding:
    """The finding of a red check, of which there were `cases`, under its diagnosis."""
    report, check = item.report, item.check
    return Finding(
        check=check.check,
        verdict=check.verdict,
        tensor=check.tensor,
        ratio=check.ratio,
        rho=check.rho,
        first_wrong_index=check.index,
        place=_place_json(diagnosis.place),
        cause=diagnosis.cause,
        reason=f"{check.reason}. Likely cause: {diagnosis.reason}",
        advice=_on_a_gpu(item) or diagnosis.advice,
        case=case_to_json(report.case),
        case_id=report.case.id,
        file=None,
        replay=replay,
        cases=cases,
        would_pass=diagnosis.would_pass,
        shrinks_with_wider_dtype=diagnosis.shrinks,
        values=_values(report, check),
        profile=profile_of(report.case.recipe),
        steps=_steps_json(item),
    )


def _on_a_gpu(item: RedCheck) -> str | None:
    """What to try where a kernel that was called on the CPU asks for a GPU."""
    problem = item.report.outcome.problem
    if item.check.check != "call" or problem is None or problem.kind != "raised":
        return None
    on_cpu = item.kernel.devices[0] == "cpu"
    asks = ASKS_FOR_A_GPU.search(problem.message) is not None
    return "judge it where it runs, with --device cuda" if on_cpu and asks else None


def _steps_json(item: RedCheck) -> dict[str, Any] | None:
    """Tokens, chunk and steps of the sequence output's failure, as few as keep it."""
    sequence = op_of(item.report.case).outputs[0].name
    if (item.check.check, item.check.tensor) != ("oracle", sequence):
        return None
    found = step_by_step(item.kernel, item.report, item.request)
    return None if found is None else asdict(found)


def _place_json(place: Place | None) -> dict[str, Any] | None:
    if place is None:
        return None
    return {
        "token": place.token,
        "chunk": place.chunk,
        "position": place.position,
        "where": place.where,
    } | ({} if place.sequence is None else {"sequence": place.sequence})


def _values(report: CaseReport, check: Check) -> tuple[str, ...]:
    """Got, want and budget at the first wrong element, as hex floats."""
    if check.tensor is None or check.index is None:
        return ()
    gradient = check.check == "gradient"
    metrics = (report.gradient_metrics if gradient else report.metrics).get(
        check.tensor
    )
    if metrics is None:
        return ()
    got = (report.outcome.gradients if gradient else report.outcome.outputs)[
        check.tensor
    ]
    want = (report.truth.gradients if gradient else report.truth.outputs)[
        check.tensor
    ].hi
    rows = (("got", got), ("want", want), ("budget", metrics.allowance))
    return tuple(
        f"{n}={float(a[check.index]).hex()} ({float(a[check.index]):.6g})"
        for n, a in rows
    )
