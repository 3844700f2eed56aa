"""A failure of a study, shrunk, as rows: one a token."""

from collections.abc import Sequence
from dataclasses import replace

from scancheck.checks.oracle import CaseReport, Request
from scancheck.checks.step_by_step import step_by_step
from scancheck.kernel import Kernel
from scancheck.study.configurations import kernel_of
from scancheck.study.plan import Job
from scancheck.study.row import Row
from scancheck.verdict import Verdict


def step_rows(
    report: CaseReport, job: Job, kernel: Kernel, request: Request, rows: Sequence[Row]
) -> list[Row]:
    """The steps of the sequence output's failure; none where it does not fail.

    T and chunk are those of the shrunk case.
    """
    whole = next((row for row in rows if row.kind == "case" and row.sequence), None)
    if whole is None or whole.verdict not in (Verdict.FAIL, Verdict.NONFINITE):
        return []
    way = job.configuration
    with_chunk = None if way.by_name else lambda n: kernel_of(replace(way, chunk=n))
    found = step_by_step(kernel, report, request, with_chunk)
    if found is None:
        return []
    return [
        replace(
            whole,
            kind="step",
            T=found.tokens,
            chunk=found.chunk,
            verdict=Verdict.FAIL if step.wrong else Verdict.PASS,
            token=step.token,
            tokens=1,
            step_a=step.a,
            step_b=step.b,
            wanted=step.wanted,
            got=step.got,
        )
        for step in found.steps
    ]
