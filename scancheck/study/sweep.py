"""The sweep: every job of a plan through the funnel, its rows in the plan's order."""

import signal
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from multiprocessing import get_context

from scancheck.bounds.moments import lambda_factor, moments_for
from scancheck.checks.oracle import CaseReport, Request, check_case
from scancheck.contract import Contract
from scancheck.environment import describe
from scancheck.formats import FloatArray
from scancheck.ops import op_named
from scancheck.study.measure import rows_of
from scancheck.study.plan import Job, case_of, kernel_of
from scancheck.study.row import Row
from scancheck.study.store import Study

FALSE_ALARM_RATE = 1e-6  # p of semantics.md, shared by all elements of the sweep

Progress = Callable[[int, int, Job, list[Row]], None]  # done, of, job, its rows


def run_study(
    jobs: Sequence[Job],
    *,
    profile: str,
    seed: int,
    workers: int = 1,
    on_job: Progress | None = None,
) -> Study:
    """The rows of all jobs; all but the seconds follow from the jobs alone.

    With more than one worker the jobs run in processes of their own.
    """
    started = time.monotonic()
    rows: list[Row] = []
    with closing(_results(jobs, workers)) as results:
        for done, (job, found) in enumerate(zip(jobs, results, strict=True), start=1):
            rows += found
            if on_job is not None:
                on_job(done, len(jobs), job, found)
    return Study(
        rows=tuple(rows),
        seed=seed,
        profile=profile,
        environment=describe(full=True),
        seconds=round(time.monotonic() - started, 1),
    )


def _results(jobs: Sequence[Job], workers: int) -> Generator[list[Row], None, None]:
    """The rows of each job in turn; jobs not begun are dropped when it is closed."""
    measured = partial(job_rows, elements=sum(_elements(job) for job in jobs))
    if workers <= 1:
        yield from map(measured, jobs)
        return
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_prepare_worker
    )
    try:
        yield from pool.map(measured, jobs, chunksize=2)
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare_worker() -> None:
    """Keeps a worker to one core, since there is one a core, and quiet on Ctrl-C."""
    import numba
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)

    numba.set_num_threads(1)
    torch.set_num_threads(1)


def job_rows(job: Job, elements: int) -> list[Row]:
    """The rows of one job; `elements` is the number judged in the whole sweep."""
    kernel, case = kernel_of(job.configuration), case_of(job)
    contract = kernel.contract or Contract()
    request = Request(
        contract=contract,
        runs=1,  # verify looks for runs that differ; here they would only cost time
        gradients=job.cotangent is not None,
        elements=elements,
        p=FALSE_ALARM_RATE,
    )
    report = check_case(kernel, case, request, cotangent_kind=job.cotangent)
    probable = _probable(report, contract, elements) if job.keep else {}
    return list(rows_of(report, job, kernel, probable))


def _probable(
    report: CaseReport, contract: Contract, elements: int
) -> dict[str, FloatArray]:
    """The bound lambda u sqrt(v) of each output (numerics 2.8), where there is one."""
    case, inputs = report.case, report.inputs
    roots = moments_for(
        op_named(case.op), inputs.tensors, inputs.switches, contract, case.dtype, None
    )
    if roots is None:
        return {}
    factor = lambda_factor(elements, FALSE_ALARM_RATE)
    return {name: factor * root for name, root in roots.items()}


def _elements(job: Job) -> int:
    """Elements of the sequence output, and of one gradient for each input beside."""
    case = case_of(job)
    sizes = dict(case.sizes)
    tokens = job.steps * sizes["B"] * sizes["D"]
    tensors = 1 if job.cotangent is None else 1 + len(op_named(case.op).inputs)
    return tokens * tensors
