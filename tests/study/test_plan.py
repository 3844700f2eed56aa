"""What a study runs: everything that the page compares, on the same inputs."""

from itertools import product

import pytest

from scancheck.errors import CaseInvalid
from scancheck.recipes.build import build
from scancheck.study.plan import (
    LARGEST_PAIRWISE_CHUNK,
    SIZES,
    SWEEPS,
    Job,
    Sweep,
    case_of,
    jobs_of,
    kernel_of,
    plan,
)

TINY = Sweep(
    chunks=(2, 4),
    steps=8,
    lengths=(4, 8),
    recipes=("gaussian_slow", "unit_decay"),
    growth_recipes=("unit_decay",),
    gradient_steps=8,
    gradient_recipes=("gaussian_slow",),
    seeds=2,
)


@pytest.mark.parametrize("profile", sorted(SWEEPS))
def test_every_job_can_be_made(profile: str) -> None:
    """Each way to compute is a model that takes its case's tensors and dtype."""
    jobs = plan(profile, seed=5)
    kernels = {way: kernel_of(way) for way in {job.configuration for job in jobs}}
    for way, kernel in kernels.items():
        assert way.storage in kernel.dtypes
        assert kernel.op == way.op
    assert {case_of(job).seed for job in jobs} == {
        5 + n for n in range(SWEEPS[profile].seeds)
    }


def test_every_case_can_be_built() -> None:
    """Sizes, options and recipes of the sweeps fit their ops."""
    recipes = {name for sweep in SWEEPS.values() for name in sweep.recipes}
    jobs = [job for job in jobs_of(TINY, 0) if job.steps == 8]
    for op, recipe in product(SIZES, recipes):
        job = next(job for job in jobs if job.configuration.op == op)
        inputs = build(
            case_of(
                Job(configuration=job.configuration, recipe=recipe, steps=16, seed=1)
            )
        )
        assert inputs.tensors


@pytest.mark.parametrize("profile", sorted(SWEEPS))
def test_grid_is_complete(profile: str) -> None:
    """Chunk size x format x variant, each on every recipe and with a carry."""
    sweep = SWEEPS[profile]
    found = {
        (way.op, way.storage, way.variant, way.chunk, way.compute, job.recipe)
        for job in plan(profile, 0)
        if (way := job.configuration).algorithm == "chunk" and job.cotangent is None
    }
    for op, storage, variant, chunk, recipe in product(
        SIZES,
        ("fp32", "fp16", "bf16"),
        ("plain", "kahan", "full", "log_diff"),
        sweep.chunks,
        sweep.recipes,
    ):
        if variant == "log_diff" and chunk > LARGEST_PAIRWISE_CHUNK:
            continue
        assert chunk < sweep.steps
        for compute in ("fp32", "storage") if storage != "fp32" else ("fp32",):
            assert (op, storage, variant, chunk, compute, recipe) in found


def test_ways_are_compared_on_the_same_tensors() -> None:
    """A case depends on op, storage, recipe, length and seed, not on the kernel."""
    cases: dict[tuple[object, ...], set[str]] = {}
    for job in plan("quick", 0):
        way = job.configuration
        key = (way.op, way.storage, job.recipe, job.steps, job.seed)
        cases.setdefault(key, set()).add(case_of(job).id)
    assert all(len(ids) == 1 for ids in cases.values())
    assert len({i for ids in cases.values() for i in ids}) == len(cases)


@pytest.mark.parametrize("profile", sorted(SWEEPS))
def test_no_job_runs_twice(profile: str) -> None:
    """Jobs that several sections of the page need run once, and keep all that is."""
    jobs = plan(profile, 0)
    cases = [(job.configuration, case_of(job).id, job.cotangent) for job in jobs]
    assert len(cases) == len(set(cases))
    kept = [job for job in jobs if job.keep]
    assert {"position", "length"} == set().union(*(job.keep for job in kept))
    assert any(job.recipe in SWEEPS[profile].recipes for job in kept)


def test_unknown_profile() -> None:
    """Another profile is refused, with those that there are."""
    with pytest.raises(CaseInvalid, match="expected one of quick, full; got 'fast'"):
        plan("fast", 0)
