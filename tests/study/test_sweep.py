"""A sweep gives the rows of its jobs, in their order, however it is run."""

from dataclasses import replace
from multiprocessing import active_children

import pytest

from scancheck.checks.oracle import Request
from scancheck.kernel import Kernel
from scancheck.study import sweep
from scancheck.study.configurations import Configuration
from scancheck.study.plan import Job
from scancheck.study.row import Row
from scancheck.study.store import Study
from scancheck.study.sweep import run_study


def sizes(steps: int) -> tuple[tuple[str, int], ...]:
    """Sizes of linear_scan."""
    return (("B", 1), ("D", 32), ("T", steps))


CHUNKED = Configuration(op="linear_scan", storage="bf16", chunk=4)
SELECTIVE = replace(CHUNKED, op="selective_scan")
JOBS = (
    Job(
        configuration=CHUNKED, recipe="gaussian_slow", sizes=sizes(12), form="g", seed=1
    ),
    Job(
        configuration=replace(CHUNKED, variant="log_diff"),
        recipe="unit_decay",
        sizes=sizes(9),
        form="g",
        seed=1,
        keep=("in_chunk", "length", "position"),
    ),
    Job(
        configuration=SELECTIVE,
        recipe="gaussian_slow",
        sizes=(("B", 1), ("D", 16), ("L", 10), ("N", 4)),
        seed=1,
        cotangent="dense",
    ),
)


def rows_of(*jobs: Job, workers: int = 1) -> tuple[Row, ...]:
    """The rows of a study of these jobs."""
    return run_study(jobs, profile="quick", seed=1, workers=workers).rows


def test_rows_name_what_was_run() -> None:
    """Formats are resolved, sizes and recipe are the case's, tensors are the op's."""
    rows = rows_of(*JOBS)
    first = rows[0]
    assert (first.op, first.tensor, first.storage) == ("linear_scan", "h", "bf16")
    assert (first.compute, first.state, first.chunk) == ("fp32", "fp32", 4)
    assert (first.T, first.B, first.D, first.N) == (12, 1, 32, None)
    assert first.kernel == "model.linear_scan.chunk4.plain"
    short = rows_of(replace(JOBS[0], configuration=replace(CHUNKED, compute="storage")))
    assert (short[0].compute, short[0].state) == ("bf16", "bf16")


def test_all_tensors_have_a_row() -> None:
    """Both outputs of every job; with cotangents the gradient of every input too."""
    rows = rows_of(*JOBS)
    forward = [row.tensor for row in rows if row.op == "linear_scan"]
    assert forward.count("final_state") == 2
    gradients = [row for row in rows if row.cotangent == "dense"]
    names = {row.tensor for row in gradients}
    assert names == {
        "y", "last_state", "du", "ddelta", "dA", "dB", "dC", "dD", "dz", "ddelta_bias",
    }  # fmt: skip
    assert all(row.rms_rel is not None for row in gradients)


def test_lengths_have_both_bounds() -> None:
    """The row against length holds the sound and the probable bound above the error.

    A difference of logs has no probable bound.
    """
    (log_row,) = [row for row in rows_of(JOBS[1]) if row.kind == "length"]
    assert log_row.max_budget_rel is not None
    assert log_row.probable_rel is None
    plain = replace(JOBS[0], keep=("length",))
    (row,) = [row for row in rows_of(plain) if row.kind == "length"]
    assert row.max_rel is not None
    assert row.max_budget_rel is not None
    assert row.probable_rel is not None
    assert row.max_rel <= row.max_budget_rel
    assert row.max_rel <= row.probable_rel


@pytest.mark.parametrize("side", ["cuda", "model.cuda"])
def test_a_device_runs_its_kernels_and_processors_judge(
    monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """CUDA kernels run on the job's device and models on the CPU, which judges both."""
    seen: list[tuple[Kernel, Request]] = []

    def stopped(
        kernel: Kernel, case: object, inputs: object, request: Request, *_: object
    ) -> None:
        seen.append((kernel, request))
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "check_inputs", stopped)
    way = replace(CHUNKED, algorithm=f"{side}.single_pass", chunk=256)
    job = replace(JOBS[0], configuration=way, section="device", device="cuda:3")
    with pytest.raises(KeyboardInterrupt):
        rows_of(job)
    ((kernel, request),) = seen
    assert kernel.name == f"{side}.linear_scan.single_pass.plain"
    assert kernel.devices == (("cuda:3",) if side == "cuda" else ("cpu",))
    assert request.device == "cpu"


def test_progress_is_told_in_order() -> None:
    """After each job comes one call, with the job and its rows."""
    told: list[tuple[int, int, Job, list[Row]]] = []
    study = run_study(
        JOBS, profile="quick", seed=1, on_job=lambda *now: told.append(now)
    )
    assert [(done, of) for done, of, _, _ in told] == [(1, 3), (2, 3), (3, 3)]
    assert tuple(job for _, _, job, _ in told) == JOBS
    assert tuple(row for *_, rows in told for row in rows) == study.rows


def test_study_knows_where_it_comes_from() -> None:
    """Seed, profile and environment are kept with the rows."""
    study = run_study((), profile="full", seed=9)
    assert (study.rows, study.profile, study.seed) == ((), "full", 9)
    assert study.environment["numpy"]


@pytest.mark.slow
def test_workers_change_nothing() -> None:
    """Two processes give the rows of one, to the last bit and in the same order."""
    assert rows_of(*JOBS, workers=2) == rows_of(*JOBS)


@pytest.mark.slow
def test_interrupted_workers_end() -> None:
    """After Ctrl-C no process is left, and what was handed over is saved."""
    saved: list[Study] = []

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(
            JOBS,
            profile="quick",
            seed=1,
            workers=2,
            on_job=interrupted,
            save=saved.append,
        )
    assert active_children() == []
    assert [(study.done, study.jobs) for study in saved] == [(1, len(JOBS))]
