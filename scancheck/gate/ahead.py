"""The reports of many cases, in order, the kernel one call ahead of its judge.

A kernel with a process of its own takes about as long there as judging takes here, so
neither waits for the other. One that runs here is called when it is judged.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass

from scancheck.case import Case
from scancheck.checks.oracle import (
    CaseReport,
    Request,
    check_case,
    drawn,
    report_of,
)
from scancheck.formats import FloatArray
from scancheck.kernel import Kernel
from scancheck.ops.calling import op_of
from scancheck.recipes.inputs import Inputs
from scancheck.runner import Outcome, execute

Asked = tuple[Case, str | None]  # a case, and its kind of cotangents


@dataclass(frozen=True, slots=True, kw_only=True)
class _Called:
    """A case that the kernel is being called on."""

    case: Case
    kind: str | None
    inputs: Inputs
    bars: dict[str, FloatArray] | None
    outcome: Future[Outcome]


def case_reports(
    kernel: Kernel, cases: Iterable[Asked], request: Request
) -> Iterator[CaseReport]:
    """The report of each case."""
    if kernel.elsewhere is None:
        for case, kind in cases:
            yield check_case(kernel, case, request, cotangent_kind=kind)
        return
    caller = ThreadPoolExecutor(max_workers=1, thread_name_prefix="scancheck-calls")
    try:
        before: _Called | None = None
        for case, kind in cases:
            called = _called(caller, kernel, case, kind, request)
            if before is not None:
                yield _report(before, request)
            before = called
        if before is not None:
            yield _report(before, request)
    finally:
        # Whoever leaves early, as by Ctrl-C, ends the kernel's process and the call.
        caller.shutdown(wait=False, cancel_futures=True)


def _called(
    caller: ThreadPoolExecutor,
    kernel: Kernel,
    case: Case,
    kind: str | None,
    request: Request,
) -> _Called:
    """Draws the case here, since other threads may be in the middle of a reference."""
    inputs, bars = drawn(case, request, kind)
    outcome = caller.submit(
        copy_context().run,
        execute,
        kernel,
        op_of(case),
        inputs,
        case.dtype,
        cotangents=bars,
        runs=request.runs,
    )
    return _Called(case=case, kind=kind, inputs=inputs, bars=bars, outcome=outcome)


def _report(called: _Called, request: Request) -> CaseReport:
    outcome = called.outcome.result()
    return report_of(
        called.case, called.inputs, request, outcome, called.bars, called.kind
    )
