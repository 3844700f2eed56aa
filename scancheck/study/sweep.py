"""The sweep: every job of a plan through the funnel, its rows in the plan's order."""

import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from math import prod
from multiprocessing import active_children, get_context

from scancheck.bounds.moments import lambda_factor, moments_for
from scancheck.captured import captured_inputs
from scancheck.checks.oracle import CaseReport, Request, check_inputs
from scancheck.contract import Contract
from scancheck.environment import describe
from scancheck.formats import FloatArray
from scancheck.ops import op_named
from scancheck.oracles import threads
from scancheck.recipes.build import build
from scancheck.recipes.inputs import cotangents
from scancheck.study.code import code_digest
from scancheck.study.configurations import kernel_of
from scancheck.study.measure import rows_of
from scancheck.study.plan import Job, case_of, key_of
from scancheck.study.row import Row
from scancheck.study.steps import step_rows
from scancheck.study.store import Study

FALSE_ALARM_RATE = 1e-6  # p of semantics.md, shared by all elements of the sweep
SAVED_EVERY = 30.0  # seconds: what a crash may cost

DEVICE = "cuda_device"  # name of it in the environment
# The jobs of one CUDA kernel and format are neighbours: one process compiles it.
AT_ONCE_ON_DEVICE = 8

Progress = Callable[[int, int, Job, list[Row]], None]  # done, of, job, its rows
Known = Mapping[str, list[Row]]  # rows by key of their job


def known_rows(study: Study) -> dict[str, list[Row]]:
    """The rows of a stored study by job.

    None where other code measured them, or another device.
    """
    found: dict[str, list[Row]] = {}
    if study.code == code_digest() and _same_device(study):
        for row in study.rows:
            found.setdefault(row.job, []).append(row)
    return found


def _same_device(study: Study) -> bool:
    if study.device == "cpu":
        return True
    return study.environment.get(DEVICE) == describe(full=True).get(DEVICE)


def run_study(
    jobs: Sequence[Job],
    *,
    profile: str,
    seed: int,
    workers: int = 1,
    on_job: Progress | None = None,
    known: Known | None = None,
    seconds: float = 0.0,
    save: Callable[[Study], None] | None = None,
) -> Study:
    """The rows of all jobs; all but the seconds follow from the jobs alone.

    With more than one worker the jobs run in processes of their own. Jobs whose rows
    are `known`, and took `seconds`, are not run again. `save` is given the study so
    far now and then, and whenever it ends, by Ctrl-C or a failure too.
    """
    started = saved = time.monotonic()
    rows = {key: list(found) for key, found in (known or {}).items()}
    keys = [key_of(job) for job in jobs]
    open_jobs = [job for job, key in zip(jobs, keys, strict=True) if key not in rows]

    def study() -> Study:
        done = [key for key in keys if key in rows]
        return Study(
            rows=tuple(row for key in done for row in rows[key]),
            seed=seed,
            profile=profile,
            environment=describe(full=True),
            seconds=round(seconds + time.monotonic() - started, 1),
            code=code_digest(),
            jobs=len(jobs),
            done=len(done),
            device=next((job.device for job in jobs), "cpu"),
        )

    elements = sum(_elements(job) for job in jobs)
    before = len(jobs) - len(open_jobs)
    try:
        with closing(_results(open_jobs, workers, elements)) as results:
            for done, (job, found) in enumerate(
                zip(open_jobs, results, strict=True), start=before + 1
            ):
                rows[key_of(job)] = found
                if on_job is not None:
                    on_job(done, len(jobs), job, found)
                if save is not None and time.monotonic() - saved > SAVED_EVERY:
                    save(study())
                    saved = time.monotonic()
    finally:
        finished = study()
        if save is not None:
            save(finished)
    return finished


def _results(
    jobs: Sequence[Job], workers: int, elements: int
) -> Generator[list[Row], None, None]:
    """The rows of each job in turn; when it is closed early, its processes end."""
    measured = partial(job_rows, elements=elements)
    if workers <= 1:
        yield from map(measured, jobs)
        return
    at_once = 2 if all(job.device == "cpu" for job in jobs) else AT_ONCE_ON_DEVICE
    others = set(active_children())
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_prepare_worker
    )
    try:
        yield from pool.map(measured, jobs, chunksize=at_once)
    except BaseException:
        # Waiting for them would make Ctrl-C slow, and a second one hang: what they
        # have not handed over is lost either way.
        for process in set(active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare_worker() -> None:
    """Keeps a worker to one core, since there is one a core, and quiet on Ctrl-C."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)

    threads.keep_to(1)
    torch.set_num_threads(1)


def job_rows(job: Job, elements: int) -> list[Row]:
    """The rows of one job; `elements` is the number judged in the whole sweep."""
    kernel, case = kernel_of(job.configuration), case_of(job)
    if "cpu" not in kernel.devices:
        kernel = replace(kernel, devices=(job.device,))
    contract = kernel.contract or Contract()
    request = Request(
        contract=contract,
        runs=1,  # verify looks for runs that differ; here they would only cost time
        gradients=job.cotangent is not None,
        elements=elements,
        p=FALSE_ALARM_RATE,
        # Judged here on a device too: as many workers as cores would wait for one card,
        # and each load what judging needs there.
        device="cpu",
    )
    inputs = build(case) if job.file is None else captured_inputs(job.file, case)
    bars = None
    if job.cotangent is not None:
        bars = cotangents(case, job.cotangent, case.seed)
    report = check_inputs(kernel, case, inputs, request, bars, job.cotangent)
    probable = _probable(report, contract, elements) if job.keep else {}
    rows = list(rows_of(report, job, kernel, probable))
    return rows + step_rows(report, job, kernel, request, rows)


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
    op = op_named(job.configuration.op)
    sizes = dict(job.sizes)
    elements = prod(sizes[axis] for axis in op.outputs[0].axes)
    tensors = 1 if job.cotangent is None else 1 + len(op.inputs)
    return elements * tensors
