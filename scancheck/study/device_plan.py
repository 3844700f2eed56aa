"""The sweep on a CUDA device: its kernels, and their models on the same cases."""

from dataclasses import dataclass, replace
from itertools import product
from string import ascii_letters, digits

from scancheck.errors import CaseInvalid, KernelUnavailable
from scancheck.kernels.cuda import catalog as cuda
from scancheck.kernels.models import cuda_catalog
from scancheck.ops import op_named
from scancheck.recipes.regimes import MAMBA_STATES, REGIMES
from scancheck.runner.device import device_for
from scancheck.study.configurations import FORMS, Configuration, way_of
from scancheck.study.plan import Job

SECTION = "device"
Cases = tuple[tuple[str, int], ...]  # recipe and tokens
SIZES = {"linear_scan": {"B": 1}, "selective_scan": {"B": 1, "N": MAMBA_STATES}}
# Of fewer channels rho is not judged (numerics 2.8); long sequences have values enough.
CHANNELS, LONG_CHANNELS, LONG = 16, 4, 65536
RHO_RECIPE = "gaussian_slow"  # on which rho may judge
# By op the algorithm whose gradients are measured: the backward pass is one for all.
BACKWARD = {"linear_scan": "single_pass", "selective_scan": "sequential"}
# How built-in models compute what CUDA kernels do, nearly.
EXACT_CHUNKS = {"linear_scan": "256", "selective_scan": "32"}
EXACT_VARIANTS = {
    "kahan": "kahan",
    "full": "full",
    "accurate": "full",
    "segsum": "log_segsum",
    "fast_segsum": "log_segsum",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSweep:
    """How much a profile sweeps on a device."""

    steps: tuple[int, ...]  # tokens, of the everyday gates
    rho_steps: int  # of RHO_RECIPE
    exact_steps: dict[str, tuple[int, ...]]  # of the built-in models by op
    gradient_steps: tuple[int, ...]
    gradient_recipes: tuple[str, ...]

    @property
    def cases(self) -> Cases:
        """Recipes and lengths of the outputs."""
        return (*product(REGIMES, self.steps), (RHO_RECIPE, self.rho_steps))

    @property
    def gradient_cases(self) -> Cases:
        """Recipes and lengths of gradients."""
        return tuple(product(self.gradient_recipes, self.gradient_steps))


DEVICE_SWEEPS = {
    "quick": DeviceSweep(
        steps=(2048, 65536),
        rho_steps=2048,
        # Their bounds are emulated, which takes long with many states.
        exact_steps={"linear_scan": (2048, 65536), "selective_scan": (2048,)},
        gradient_steps=(2048,),
        gradient_recipes=("regime_slow_gate", "regime_mamba_defaults"),
    ),
    "full": DeviceSweep(
        steps=(256, 2048, 16384, 65536, 262144),
        rho_steps=16384,
        exact_steps={
            "linear_scan": (256, 2048, 16384, 65536, 262144),
            "selective_scan": (256, 2048, 16384),
        },
        gradient_steps=(2048, 16384),
        gradient_recipes=(*REGIMES, RHO_RECIPE),
    ),
}


def usable_device(asked: str) -> str:
    """The device `cuda:N` of a name; raises as `device_for`, for all CUDA kernels."""
    kernel = replace(cuda.kernels()[0], name="report")
    device = device_for(kernel, asked)
    if kernel.unavailable is not None:
        raise KernelUnavailable(f"report cannot run on {asked}: {kernel.unavailable}")
    return device


def device_plan(profile: str, seed: int, device: str) -> tuple[Job, ...]:
    """The jobs of a profile on a device, each once, in a fixed order.

    Kernels that choose their order by themselves are left out: it is that of another.
    Raises CaseInvalid for an unknown profile.
    """
    if profile not in DEVICE_SWEEPS:
        raise CaseInvalid(
            f"--profile: expected one of {', '.join(DEVICE_SWEEPS)}; got {profile!r}"
        )
    sweep = DEVICE_SWEEPS[profile]
    models = {kernel.name: kernel for kernel in cuda_catalog.models()}
    jobs: list[Job] = []

    def add(way: Configuration, cases: Cases, cotangent: str | None = None) -> None:
        for recipe, count in cases:
            channels = CHANNELS if count < LONG else LONG_CHANNELS
            sizes = SIZES[way.op] | {"D": channels, op_named(way.op).time_axis: count}
            job = Job(
                configuration=way,
                recipe=recipe,
                seed=seed,
                sizes=tuple(sorted(sizes.items())),
                form=FORMS[way.op][0],
                section=SECTION,
                cotangent=cotangent,
                device=device,
            )
            jobs.append(job)

    for kernel in cuda.kernels():
        model = models.get(cuda_catalog.model_of(kernel.name) or "")
        if model is None:
            continue
        algorithm = kernel.name.split(".")[2].rstrip(digits)
        differentiable = algorithm == BACKWARD[kernel.op]
        for storage in kernel.dtypes:
            for side in (kernel, model):
                way = way_of(side, storage)
                add(way, sweep.cases)
                if differentiable:
                    add(way, sweep.gradient_cases, "dense")
            within = sweep.exact_steps[kernel.op]
            exact = tuple(case for case in sweep.cases if case[1] in within)
            add(exact_beside(kernel.name, storage), exact)
    return tuple(dict.fromkeys(jobs))


def exact_beside(kernel: str, storage: str) -> Configuration:
    """The built-in model nearest to the CUDA kernel of this name.

    It rounds every operation exactly, and has no fused multiply-adds.
    """
    _, op, order, variant, *options = kernel.split(".")
    state = options[0].removeprefix("state_") if options else None
    in_steps = order == "sequential" and state is None
    chunk = order.lstrip(ascii_letters + "_") or EXACT_CHUNKS[op]
    return Configuration(
        op=op,
        storage=storage,
        algorithm="sequential" if in_steps else "chunk",
        variant=EXACT_VARIANTS.get(variant, "plain"),
        state=state,
        chunk=None if in_steps else int(chunk),
    )
