"""Which kernels a study runs on which cases, and what it keeps of each."""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from scancheck.case import Case, make_case
from scancheck.errors import CaseInvalid
from scancheck.formats import format_named
from scancheck.kernel import Kernel
from scancheck.kernels.models.catalog import model

SHORT = ("fp16", "bf16")
STORAGES = ("fp32", *SHORT)
SIZES = {
    "linear_scan": {"B": 1, "D": 32},
    "selective_scan": {"B": 1, "D": 16, "N": 4},
}
TIME = {"linear_scan": "T", "selective_scan": "L"}
# A difference of logs takes an exponential for every pair of tokens of a chunk.
LARGEST_PAIRWISE_CHUNK = 256
# Log gates, which every variant takes: the difference of cumulative sums needs them.
OPTIONS: dict[str, dict[str, Any]] = {
    "linear_scan": {"form": "g"},
    "selective_scan": {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One way to compute: algorithm, variant and formats."""

    op: str
    storage: str  # format of the op's tensors
    algorithm: str = "chunk"
    variant: str = "plain"
    compute: str = "fp32"  # fp32, or storage
    state: str | None = None  # None: as computed; or storage
    chunk: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One kernel on one case."""

    configuration: Configuration
    recipe: str
    steps: int
    seed: int
    cotangent: str | None = None  # kind of cotangents; None: forward only
    keep: frozenset[str] = frozenset()  # also position, length rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The sizes of a profile."""

    chunks: tuple[int, ...]
    steps: int  # of the grid of chunk size x format x variant
    lengths: tuple[int, ...]
    recipes: tuple[str, ...]
    growth_recipes: tuple[str, ...]  # for error against length and position
    gradient_steps: int
    gradient_recipes: tuple[str, ...]
    seeds: int


SWEEPS = {
    "quick": Sweep(
        chunks=(16, 32, 64, 128, 256),
        steps=1024,
        lengths=(64, 256, 1024, 4096),
        recipes=(
            "gaussian_slow",
            "mixed_time_scales",
            "decay_near_one",
            "decay_near_zero",
            "unit_decay",
        ),
        growth_recipes=("unit_decay", "gaussian_slow"),
        gradient_steps=256,
        gradient_recipes=("gaussian_slow",),
        seeds=1,
    ),
    "full": Sweep(
        chunks=(16, 32, 64, 128, 256, 1024),
        steps=2048,
        lengths=(128, 512, 2048, 8192),
        recipes=(
            "gaussian_slow",
            "mixed_time_scales",
            "decay_near_one",
            "unit_decay",
            "decay_near_zero",
            "telescoping_cancellation",
        ),
        growth_recipes=("unit_decay", "gaussian_slow"),
        gradient_steps=512,
        gradient_recipes=("gaussian_slow", "mixed_time_scales"),
        seeds=1,
    ),
}


def plan(profile: str, seed: int) -> tuple[Job, ...]:
    """The jobs of a profile in a fixed order; raises CaseInvalid for another name."""
    if profile not in SWEEPS:
        raise CaseInvalid(
            f"--profile: expected one of {', '.join(SWEEPS)}; got {profile!r}"
        )
    return jobs_of(SWEEPS[profile], seed)


def jobs_of(sweep: Sweep, seed: int) -> tuple[Job, ...]:
    """The jobs of a sweep, each once, in a fixed order."""
    jobs: list[Job] = []
    for op, offset in product(SIZES, range(sweep.seeds)):
        jobs += _grid(op, sweep, seed + offset)
        jobs += _growth(op, sweep, seed + offset)
        jobs += _gradients(op, sweep, seed + offset)
    return _merged(jobs)


def chunked(op: str) -> list[Configuration]:
    """Every format and variant of two passes over chunks, without a chunk size."""
    found = []
    for storage, variant in product(STORAGES, ("plain", "log_diff", "kahan", "full")):
        base = Configuration(op=op, storage=storage, variant=variant)
        found.append(base)
        if storage in SHORT:
            if variant == "plain":
                found.append(replace(base, state="storage"))
            found.append(replace(base, compute="storage"))
    return found


def _grid(op: str, sweep: Sweep, seed: int) -> list[Job]:
    """Chunk size x format x variant, and the other algorithms once each."""
    ways = [
        replace(way, chunk=chunk)
        for way, chunk in product(chunked(op), sweep.chunks)
        if way.variant != "log_diff" or chunk <= LARGEST_PAIRWISE_CHUNK
    ]
    for storage in STORAGES:
        plain = Configuration(op=op, storage=storage)
        ways += [
            replace(plain, algorithm="sequential"),
            replace(plain, algorithm="hillis_steele"),
        ]
    return [
        Job(configuration=way, recipe=recipe, steps=sweep.steps, seed=seed)
        for recipe, way in product(sweep.recipes, ways)
    ]


def growing(op: str) -> list[Configuration]:
    """The few ways to compute whose growth and profile are shown."""
    fp32 = Configuration(op=op, storage="fp32", chunk=64)
    bf16 = Configuration(op=op, storage="bf16", chunk=64)
    return [
        replace(fp32, algorithm="sequential", chunk=None),
        replace(fp32, algorithm="hillis_steele", chunk=None),
        fp32,
        replace(fp32, variant="log_diff"),
        replace(fp32, variant="full"),
        bf16,
        replace(bf16, state="storage"),
        replace(bf16, compute="storage"),
    ]


def _growth(op: str, sweep: Sweep, seed: int) -> list[Job]:
    """Error against length, and against position at the grid's length."""
    jobs = []
    for recipe, steps, way in product(sweep.growth_recipes, sweep.lengths, growing(op)):
        keep = {"length"} | ({"position"} if steps == sweep.steps else set())
        jobs.append(
            Job(
                configuration=way,
                recipe=recipe,
                steps=steps,
                seed=seed,
                keep=frozenset(keep),
            )
        )
    return jobs


def _gradients(op: str, sweep: Sweep, seed: int) -> list[Job]:
    """Gradients of a subset, from dense cotangents."""
    ways = [
        replace(way, chunk=chunk)
        for way, chunk in product(growing(op), (16, 64, 256))
        if way.chunk is not None
    ]
    return [
        Job(
            configuration=way,
            recipe=recipe,
            steps=sweep.gradient_steps,
            seed=seed,
            cotangent="dense",
        )
        for recipe, way in product(sweep.gradient_recipes, ways)
    ]


def _merged(jobs: list[Job]) -> tuple[Job, ...]:
    """Jobs that differ only in what is kept, once each."""
    kept: dict[Job, frozenset[str]] = {}
    for job in jobs:
        key = replace(job, keep=frozenset())
        kept[key] = kept.get(key, frozenset()) | job.keep
    return tuple(replace(job, keep=keep) for job, keep in kept.items())


def kernel_of(way: Configuration) -> Kernel:
    """The built-in model that computes this way."""
    chunk = {} if way.chunk is None else {"chunk": way.chunk}
    return model(
        way.op,
        way.algorithm,
        way.variant,
        compute=way.compute,
        state=way.state,
        **chunk,
    )


def case_of(job: Job) -> Case:
    """The case of a job: the same tensors for every way to compute.

    Recipes aim at edges of their default chunk size whatever the kernel's is.
    """
    op = job.configuration.op
    format_named(job.configuration.storage)
    return make_case(
        op,
        {**SIZES[op], TIME[op]: job.steps},
        dtype=job.configuration.storage,
        recipe=job.recipe,
        seed=job.seed,
        options=OPTIONS[op],
    )
