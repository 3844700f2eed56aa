"""The reports of many cases, in order, the kernel one call ahead of its judge.

A kernel with a process of its own takes about as long there as judging takes here, so
neither waits for the other. One that runs here is called when it is judged.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from functools import partial

from scancheck.case import Case
from scancheck.checks.oracle import CaseReport, Request, drawn
from scancheck.gate.judges import Called, reports_of
from scancheck.kernel import Kernel
from scancheck.ops.calling import op_of
from scancheck.runner import Outcome, execute

Asked = tuple[Case, str | None]  # a case, and its kind of cotangents


def case_reports(
    kernel: Kernel, cases: Sequence[Asked], request: Request
) -> Iterator[CaseReport]:
    """The report of each case."""
    called = _called_here if kernel.elsewhere is None else _called_ahead
    with closing(called(kernel, cases, request)) as calls:
        yield from reports_of(calls, request, len(cases))


def _called_here(
    kernel: Kernel, cases: Sequence[Asked], request: Request
) -> Generator[Called]:
    """Each case when it is asked for."""
    for asked in cases:
        called, call = _drawn(kernel, asked, request)
        yield called(outcome=call())


def _called_ahead(
    kernel: Kernel, cases: Sequence[Asked], request: Request
) -> Generator[Called]:
    """Each case while the one before it is judged."""
    caller = ThreadPoolExecutor(max_workers=1, thread_name_prefix="scancheck-calls")
    before: tuple[Callable[..., Called], Future[Outcome]] | None = None
    try:
        for asked in cases:
            # Drawn here, since other threads may be in the middle of a reference.
            called, call = _drawn(kernel, asked, request)
            outcome = caller.submit(copy_context().run, call)
            if before is not None:
                yield before[0](outcome=before[1].result())
            before = called, outcome
        if before is not None:
            yield before[0](outcome=before[1].result())
    finally:
        # Whoever leaves early, as by Ctrl-C, ends the kernel's process and the call.
        caller.shutdown(wait=False, cancel_futures=True)


def _drawn(
    kernel: Kernel, asked: Asked, request: Request
) -> tuple[Callable[..., Called], Callable[[], Outcome]]:
    """A case without its outcome, and the call that has it."""
    case, kind = asked
    inputs, bars = drawn(case, request, kind)
    call = partial(
        execute,
        kernel,
        op_of(case),
        inputs,
        case.dtype,
        cotangents=bars,
        runs=request.runs,
    )
    return partial(Called, case=case, kind=kind, inputs=inputs, bars=bars), call
