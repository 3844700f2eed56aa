"""What a study runs: everything that the page compares, on the same inputs."""

from dataclasses import replace
from itertools import product

import pytest

from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS
from scancheck.kernels.models.catalog import ALGORITHMS, VARIANTS
from scancheck.ops import op_named
from scancheck.recipes import RECIPES
from scancheck.recipes.build import build
from scancheck.recipes.regimes import REGIMES
from scancheck.study import configurations
from scancheck.study.configurations import (
    FORMS,
    LARGEST_PAIRWISE_CHUNK,
    STORAGES,
    Configuration,
    forms_taken,
    kernel_of,
)
from scancheck.study.plan import (
    SECTIONS,
    SIZES,
    SWEEPS,
    case_of,
    key_of,
    plan,
)

PROFILES = sorted(SWEEPS)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_job_can_be_made(profile: str) -> None:
    """Each way to compute is a model that takes its case's form and dtype."""
    jobs = plan(profile, seed=5)
    for way, form in {(job.configuration, job.form) for job in jobs}:
        kernel = kernel_of(way)
        assert way.storage in kernel.dtypes
        assert kernel.op == way.op
        assert form in forms_taken(replace(way, chunk=None))
    assert min(case_of(job).seed for job in jobs) == 5
    assert {job.section for job in jobs} <= set(SECTIONS)


def test_every_case_can_be_built() -> None:
    """Sizes, options and recipes of the sweeps fit their ops, made short."""
    seen = set()
    for job in plan("full", 0):
        axis = op_named(job.configuration.op).time_axis
        sizes = tuple((n, 16 if n == axis else s) for n, s in job.sizes)
        short = case_of(replace(job, sizes=sizes))
        if short.dtype == "bf16" and short.id not in seen:
            seen.add(short.id)
            assert build(short).tensors
    assert len(seen) > 30


@pytest.mark.parametrize("profile", PROFILES)
def test_grid_is_complete(profile: str) -> None:
    """Chunk size x format x variant, each on every recipe and with a carry."""
    sweep = SWEEPS[profile]
    found = {
        (way.op, job.form, way.storage, way.variant, way.chunk, way.compute, job.recipe)
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
        for form in sweep.forms[op]:
            if form == "a" and variant == "log_diff":
                continue
            short = variant == "plain" and storage != "fp32"
            if variant != "plain" and storage not in sweep.varied:
                continue
            for compute in ("fp32", "storage") if short else ("fp32",):
                way = (op, form, storage, variant, chunk, compute, recipe)
                assert way in found


def test_every_form_and_algorithm_is_swept() -> None:
    """The full profile has gates and decays, chunks inside in a tree, all recipes."""
    jobs = plan("full", 0)
    assert {job.form for job in jobs} == {"g", "a", None}
    for op in SIZES:
        mine = [job for job in jobs if job.configuration.op == op]
        assert {job.configuration.algorithm for job in mine} == set(ALGORITHMS)
        assert {job.configuration.variant for job in mine} == set(VARIANTS)
        trees = {
            job.configuration.chunk
            for job in mine
            if job.configuration.algorithm == "chunk_tree"
        }
        assert trees == set(SWEEPS["full"].chunks)
        for form in FORMS[op]:
            run = {job.recipe for job in mine if job.form == form}
            there = {
                r.name
                for r in RECIPES.values()
                if (op, form) in r.supports and not r.exact
            }
            assert there <= run


@pytest.mark.parametrize("profile", PROFILES)
def test_everyday_gates_are_answered_for(profile: str) -> None:
    """Each regime runs at 2048 and 65 536 tokens, in every 16- and 32-bit format."""
    found = {
        (way.op, job.recipe, dict(job.sizes)[op_named(way.op).time_axis], way.storage)
        for job in plan(profile, 0)
        if (way := job.configuration).algorithm == "chunk"
    }
    for op, regime, steps, storage in product(
        SIZES, REGIMES, (2048, 65536), ("fp32", "bf16", "fp16")
    ):
        assert (op, regime, steps, storage) in found


def test_ways_are_compared_on_the_same_tensors() -> None:
    """A case depends on op, storage, recipe, sizes and seed, not on the kernel."""
    cases: dict[tuple[object, ...], set[str]] = {}
    for job in plan("quick", 0):
        way = job.configuration
        key = (way.op, way.storage, job.recipe, job.sizes, job.seed, job.form)
        cases.setdefault(key, set()).add(case_of(job).id)
    assert all(len(ids) == 1 for ids in cases.values())
    assert len({i for ids in cases.values() for i in ids}) == len(cases)


@pytest.mark.parametrize("profile", PROFILES)
def test_no_job_runs_twice(profile: str) -> None:
    """Jobs that several sections of the page need run once, and keep all that is."""
    jobs = plan(profile, 0)
    cases = [(job.configuration, case_of(job).id, job.cotangent) for job in jobs]
    assert len(cases) == len(set(cases))
    assert len({key_of(job) for job in jobs}) == len(jobs)
    found = {name for job in jobs for name in job.keep}
    assert found == {"position", "in_chunk", "length"}
    assert any(job.keep and job.section == "grid" for job in jobs)
    chunkless = [job for job in jobs if job.configuration.chunk is None]
    assert not any("in_chunk" in job.keep for job in chunkless)


def test_a_key_follows_from_every_field() -> None:
    """Two jobs that differ in anything have different keys; equal ones share theirs."""
    job = plan("quick", 0)[0]
    assert key_of(job) == key_of(replace(job))
    changed = [
        replace(job, seed=job.seed + 1),
        replace(job, recipe="x"),
        replace(job, keep=("length",)),
        replace(job, file="x"),
        replace(job, device="cuda:0"),
        replace(job, sizes=(*job.sizes, ("x", 1))),
        replace(job, configuration=replace(job.configuration, chunk=7)),
    ]
    assert len({key_of(job), *map(key_of, changed)}) == len(changed) + 1


def test_a_new_variant_slots_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the catalog lists, the sweep has; what no model computes, it leaves out."""
    monkeypatch.setattr(configurations, "VARIANTS", ("plain", "no_such_variant"))
    ways = configurations.configurations(
        "linear_scan", "g", "chunk", configurations.VARIANTS
    )
    assert {way.variant for way in ways} == {"plain"}
    assert {way.storage for way in ways} >= {"fp32", "bf16", "fp16"}
    assert set(STORAGES) == set(FORMATS) - {"fp64"}
    odd = Configuration(op="linear_scan", storage="fp32", algorithm="no_such")
    assert forms_taken(odd) == ()


def test_unknown_profile() -> None:
    """Another profile is refused, with those that there are."""
    with pytest.raises(CaseInvalid, match="expected one of quick, full; got 'fast'"):
        plan("fast", 0)
