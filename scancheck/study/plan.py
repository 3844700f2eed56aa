"""What a study runs: one job for each way to compute on each case."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import product

from scancheck.case import Case, make_case
from scancheck.errors import CaseInvalid
from scancheck.formats import format_named
from scancheck.ops import op_named
from scancheck.recipes.catalog import RECIPES, recipes_for
from scancheck.recipes.regimes import MAMBA_STATES, REGIMES
from scancheck.study.configurations import (
    FORMS,
    Configuration,
    configurations,
    forms_taken,
    in_chunks,
    other_algorithms,
    takes_chunks,
)
from scancheck.study.sweeps import SWEEPS, Sweep

Sizes = tuple[tuple[str, int], ...]  # all of the op's, in the order of names
SECTIONS = ("grid", "growth", "hazard", "regime", "gradient", "captured", "device")
SIZES = {
    "linear_scan": {"B": 1, "D": 32},
    "selective_scan": {"B": 1, "D": 16, "N": 4},
}
GROWTH_CHUNK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One kernel on one case."""

    configuration: Configuration
    recipe: str
    seed: int
    sizes: Sizes
    form: str | None = None  # of linear_scan's decays: a or g
    section: str = "grid"  # for which part of the page it is run
    cotangent: str | None = None  # kind of cotangents; None: forward only
    keep: tuple[str, ...] = ()  # of position, in_chunk, length rows; sorted
    file: str | None = None  # of captured tensors, in place of the recipe
    device: str = "cpu"  # that judges, and on which CUDA kernels run


def plan(profile: str, seed: int) -> tuple[Job, ...]:
    """The jobs of a profile in a fixed order; raises CaseInvalid for another name."""
    if profile not in SWEEPS:
        raise CaseInvalid(
            f"--profile: expected one of {', '.join(SWEEPS)}; got {profile!r}"
        )
    return jobs_of(SWEEPS[profile], seed)


def jobs_of(sweep: Sweep, seed: int) -> tuple[Job, ...]:
    """The jobs of a sweep, each once, in a fixed order.

    The parts that the page opens with come first.
    """
    jobs: list[Job] = []
    for op in SIZES:
        jobs += _regimes(op, sweep, seed)
    for op in SIZES:
        for form in FORMS[op]:
            if form in sweep.forms[op]:
                jobs += _grid(op, form, sweep, seed)
                jobs += _growth(op, form, sweep, seed)
                jobs += _gradients(op, form, sweep, seed)
            jobs += _hazards(op, form, sweep, seed)
    return _merged(jobs)


def _grid(op: str, form: str | None, sweep: Sweep, seed: int) -> list[Job]:
    """Chunk size x format x variant, and the other algorithms once each."""
    ways = [way for way in other_ways(op, form) if way.storage in sweep.varied]
    for algorithm in ("chunk", *sweep.also_in_chunks):
        ways += in_chunks(_varied(op, form, algorithm, sweep.varied), sweep.chunks)
    return [
        _job(way, recipe, sweep.steps, seed, form, "grid")
        for recipe, way in product(_fitting(op, form, sweep.recipes), ways)
    ]


def _varied(
    op: str, form: str | None, algorithm: str, storages: tuple[str, ...]
) -> list[Configuration]:
    """Plain arithmetic in every format, the other variants in fp32 on these storages.

    What a variant is chosen for, short arithmetic takes away.
    """
    return [
        way
        for way in configurations(op, form, algorithm)
        if way.variant == "plain" or (way.storage in storages and way.compute == "fp32")
    ]


def other_ways(op: str, form: str | None) -> list[Configuration]:
    """The other algorithms in plain arithmetic, each format once, and log_full."""
    return [
        replace(way, chunk=GROWTH_CHUNK if takes_chunks(way) else None)
        for algorithm in other_algorithms()
        for way in configurations(op, form, algorithm, ("plain", "log_full"))
        if way.compute == "fp32" and way.state is None
    ]


def typical(op: str, form: str | None) -> list[Configuration]:
    """The few ways whose growth, profile and gradients are shown, without chunks."""
    fp32 = Configuration(op=op, storage="fp32")
    bf16 = Configuration(op=op, storage="bf16")
    ways = [
        replace(fp32, algorithm="sequential"),
        replace(fp32, algorithm="hillis_steele"),
        fp32,
        replace(fp32, variant="log_diff"),
        replace(fp32, variant="full"),
        bf16,
        replace(bf16, state="storage"),
        replace(bf16, compute="storage"),
    ]
    return [way for way in ways if form in forms_taken(way)]


def _growth(op: str, form: str | None, sweep: Sweep, seed: int) -> list[Job]:
    """Error against length, and against position at the grid's length."""
    jobs = []
    for recipe, steps, way, offset in product(
        _fitting(op, form, sweep.growth_recipes),
        sweep.lengths,
        typical(op, form),
        range(sweep.growth_seeds),
    ):
        keep = ["length"]
        if steps == sweep.steps and not offset:
            keep += ["position", "in_chunk"]
        chunk = GROWTH_CHUNK if takes_chunks(way) else None
        job = _job(
            replace(way, chunk=chunk), recipe, steps, seed + offset, form, "growth"
        )
        jobs.append(replace(job, keep=kept(job.configuration, *keep)))
    return jobs


def kept(way: Configuration, *names: str) -> tuple[str, ...]:
    """Those of the names of profiles that there can be for a way, sorted."""
    return tuple(sorted(n for n in names if n != "in_chunk" or way.chunk is not None))


def _gradients(op: str, form: str | None, sweep: Sweep, seed: int) -> list[Job]:
    """Gradients of a subset, from dense cotangents."""
    ways = in_chunks(
        [way for way in typical(op, form) if takes_chunks(way)], sweep.gradient_chunks
    )
    return [
        replace(
            _job(way, recipe, steps, seed, form, "gradient"),
            cotangent="dense",
        )
        for recipe, steps, way in product(
            _fitting(op, form, sweep.gradient_recipes), sweep.gradient_steps, ways
        )
        if (way.chunk or 0) < steps
    ]


def _hazards(op: str, form: str | None, sweep: Sweep, seed: int) -> list[Job]:
    """Every recipe of the catalog on every format and variant, in one chunk size."""
    if sweep.hazard_steps is None:
        return []
    ways = _varied(op, form, "chunk", sweep.hazard_varied)
    ways = in_chunks(ways, (GROWTH_CHUNK,))
    return [
        _job(way, recipe.name, sweep.hazard_steps, seed, form, "hazard")
        for recipe, way in product(recipes_for(op, form), ways)
        if not recipe.exact  # which says whether, never how precisely
    ]


def _regimes(op: str, sweep: Sweep, seed: int) -> list[Job]:
    """Everyday gates at the lengths that the page answers for."""
    form = FORMS[op][0]
    ways = [
        way
        for way in configurations(op, form, "chunk", sweep.regime_variants)
        if way.variant in ("plain", "full") or way.compute == "fp32"
    ]
    jobs = []
    for offset, name, size in product(range(sweep.seeds), REGIMES, sweep.regimes):
        sizes = {"B": 1, "D": size.chains}
        if op == "selective_scan":
            sizes = {"B": 1, "D": max(1, size.chains // 4), "N": MAMBA_STATES}
        plain = [way for way in ways if way.variant == "plain"]
        jobs += [
            _job(way, name, size.steps, seed + offset, form, "regime", sizes)
            for way in (
                *in_chunks(ways, size.chunks),
                *in_chunks(plain, size.plain_chunks),
            )
        ]
    return jobs


def _fitting(op: str, form: str | None, names: Iterable[str]) -> list[str]:
    """Those of the named recipes that there are for an op and form."""
    return [n for n in names if n in RECIPES and (op, form) in RECIPES[n].supports]


def _job(
    way: Configuration,
    recipe: str,
    steps: int,
    seed: int,
    form: str | None,
    section: str,
    sizes: dict[str, int] | None = None,
) -> Job:
    chosen = (sizes or SIZES[way.op]) | {op_named(way.op).time_axis: steps}
    return Job(
        configuration=way,
        recipe=recipe,
        seed=seed,
        sizes=tuple(sorted(chosen.items())),
        form=form,
        section=section,
    )


def _merged(jobs: list[Job]) -> tuple[Job, ...]:
    """Each job once, keeping what any of its repeats keeps, for the first's section."""
    first: dict[Job, Job] = {}
    for job in jobs:
        key = replace(job, keep=(), section="grid")
        before = first.get(key, job)
        kept = tuple(sorted({*before.keep, *job.keep}))
        first[key] = replace(before, keep=kept)
    return tuple(first.values())


def case_of(job: Job) -> Case:
    """The case of a job: the same tensors for every way to compute.

    Recipes aim at edges of their default chunk size whatever the kernel's is.
    """
    format_named(job.configuration.storage)
    return make_case(
        job.configuration.op,
        dict(job.sizes),
        dtype=job.configuration.storage,
        recipe=job.recipe,
        seed=job.seed,
        options={} if job.form is None else {"form": job.form},
    )


def key_of(job: Job) -> str:
    """A short name of everything that a job's rows depend on beside the code.

    Without a device it is that of a job which knows none.
    """
    told = asdict(job)
    if job.device == "cpu":
        del told["device"]
    text = json.dumps(told, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
