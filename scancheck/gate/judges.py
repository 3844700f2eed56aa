"""Processes that judge cases side by side, on machines that have the cores for it.

Judging holds the interpreter for a good part of its time, so that threads would wait
for one another. What a case's report says does not depend on who judged it.
"""

import signal
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace

from scancheck.case import Case
from scancheck.checks.oracle import CaseReport, Request, device_for_case, report_of
from scancheck.formats import FloatArray
from scancheck.kernel_server import FOR_JUDGING, FOR_ONE_KERNEL
from scancheck.ops.calling import op_of
from scancheck.oracles import threads
from scancheck.recipes.inputs import Inputs
from scancheck.recipes.op_rules import CUSTOM
from scancheck.runner import Outcome
from scancheck.runner.process import main_module_left_out, process_context

CORES_OF_ONE = 4  # of a process that judges: its compiled loops use several
MOST = 4
# Fewer cases are judged before the processes have started.
LEAST_CASES = 100
# Cases that wait in line for each process: a long one must not hold up the others.
AHEAD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """A case that the kernel was called on."""

    case: Case
    kind: str | None  # of its cotangents
    inputs: Inputs
    bars: dict[str, FloatArray] | None
    outcome: Outcome


def report_here(called: Called, request: Request) -> CaseReport:
    """The report of a case, judged in this process."""
    return report_of(
        called.case,
        called.inputs,
        request,
        called.outcome,
        called.bars,
        called.kind,
    )


def reports_of(
    called: Iterable[Called], request: Request, cases: int
) -> Iterator[CaseReport]:
    """The report of each case, in order.

    Large cases that a device judges are judged here, where it has been opened.
    """
    count = processes(cases)
    if count < 2:
        for one in called:
            yield report_here(one, request)
        return
    with _judges(count) as pool:
        waiting: deque[tuple[Called, Future[CaseReport] | None]] = deque()
        for one in called:
            waiting.append((one, _handed_over(pool, one, request)))
            while waiting and (len(waiting) > AHEAD * count or _is_done(waiting[0][1])):
                yield _report(*waiting.popleft(), request)
        while waiting:
            yield _report(*waiting.popleft(), request)


def processes(cases: int) -> int:
    """How many processes judge so many cases; fewer than 2: this one does."""
    return 0 if cases < LEAST_CASES else min(MOST, threads.cores() // CORES_OF_ONE)


@contextmanager
def _judges(count: int) -> Iterator[ProcessPoolExecutor]:
    share = max(1, threads.cores() // count)
    pool = ProcessPoolExecutor(
        count,
        mp_context=process_context(FOR_ONE_KERNEL + FOR_JUDGING),
        initializer=_prepare,
        initargs=(share,),
    )
    try:
        yield pool
    finally:
        # Whoever leaves early, as by Ctrl-C, wants nothing of what is under way.
        pool.shutdown(wait=False, cancel_futures=True)


def _prepare(cores: int) -> None:
    """Keeps a judging process to its cores, and quiet on Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threads.keep_to(cores)


def _handed_over(
    pool: ProcessPoolExecutor, called: Called, request: Request
) -> Future[CaseReport] | None:
    """The report to come from another process; None for a case to be judged here."""
    op = op_of(called.case)
    # An op of the user's own is not known there, and a card is open here alone.
    if op.name in CUSTOM or device_for_case(op, called.case, request) != "cpu":
        return None
    try:
        with main_module_left_out():
            return pool.submit(report_here, called, replace(request, device="cpu"))
    except BrokenProcessPool:
        return None


def _is_done(report: Future[CaseReport] | None) -> bool:
    return report is None or report.done()


def _report(
    called: Called, report: Future[CaseReport] | None, request: Request
) -> CaseReport:
    """The report, made here where its process has died."""
    if report is not None:
        try:
            return report.result()
        except BrokenProcessPool:
            pass
    return report_here(called, request)
