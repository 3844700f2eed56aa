"""Every way to compute that the models have, read from their catalog."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS
from scancheck.kernel import Kernel
from scancheck.kernels.cuda import catalog as cuda
from scancheck.kernels.models import cuda_catalog
from scancheck.kernels.models.catalog import ALGORITHMS, VARIANTS, model
from scancheck.ops import op_named
from scancheck.runner.signature import accepted_parameters

# fp64 is what precision is compared with, not what is chosen for speed.
STORAGES = tuple(
    sorted((f for f in FORMATS if f != "fp64"), key=lambda name: -FORMATS[name].bits)
)
FORMS: dict[str, tuple[str | None, ...]] = {
    "linear_scan": ("g", "a"),
    "selective_scan": (None,),
}
# Log forms take an exponential for every pair of tokens of a chunk.
LARGEST_PAIRWISE_CHUNK = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One way to compute: algorithm, variant and formats.

    The algorithm is one of the built-in models', or that of a CUDA kernel or of its CPU
    model, with what their names have before the op: `cuda.` or `model.cuda.`.
    """

    op: str
    storage: str  # format of the op's tensors
    algorithm: str = "chunk"
    variant: str = "plain"
    compute: str = "fp32"  # fp32, or storage
    state: str | None = None  # None: as computed; or storage
    chunk: int | None = None

    @property
    def by_name(self) -> bool:
        """Whether it is a kernel with a name, whose chunk size cannot be chosen."""
        return "." in self.algorithm


def kernel_of(way: Configuration) -> Kernel:
    """The kernel that computes this way; raises CaseInvalid without one."""
    if way.by_name:
        side, _, algorithm = way.algorithm.rpartition(".")
        return _named(f"{side}.{way.op}.{algorithm}.{way.variant}")
    chunk = {} if way.chunk is None else {"chunk": way.chunk}
    return model(
        way.op,
        way.algorithm,
        way.variant,
        compute=way.compute,
        state=way.state,
        **chunk,
    )


def _named(name: str) -> Kernel:
    """The CUDA kernel, or the CPU model of one, that has this name."""
    for kernel in (*cuda.kernels(), *cuda_catalog.models()):
        if kernel.name == name:
            return kernel
    raise CaseInvalid(f"kernel {name!r} is unknown")


def way_of(kernel: Kernel, storage: str) -> Configuration:
    """How a CUDA kernel, or the CPU model of one, computes with a storage format."""
    side, _, rest = kernel.name.partition(f".{kernel.op}.")
    algorithm, _, variant = rest.partition(".")
    return Configuration(
        op=kernel.op,
        storage=storage,
        algorithm=f"{side}.{algorithm}",
        variant=variant,
        chunk=kernel.chunk,
    )


def configurations(
    op: str, form: str | None, algorithm: str, variants: tuple[str, ...] = VARIANTS
) -> list[Configuration]:
    """Every format and variant that an algorithm has in a form, without a chunk size.

    A state in the storage format is taken with plain arithmetic alone: the others are
    chosen for more precision.
    """
    return [
        way
        for way in _combinations(op, algorithm, variants)
        if form in forms_taken(way)
        and (way.state is None or (way.variant == "plain" and takes_chunks(way)))
    ]


def _combinations(
    op: str, algorithm: str, variants: tuple[str, ...]
) -> Iterator[Configuration]:
    for storage, variant in product(STORAGES, variants):
        plain = Configuration(
            op=op, storage=storage, algorithm=algorithm, variant=variant
        )
        yield plain
        if storage != plain.compute:
            yield replace(plain, state="storage")
            yield replace(plain, compute="storage")


@lru_cache
def forms_taken(way: Configuration) -> tuple[str | None, ...]:
    """The op's forms that the model of this way takes; none where there is no model."""
    try:
        kernel = kernel_of(way)
    except CaseInvalid:
        return ()
    if way.storage not in kernel.dtypes:
        return ()
    accepted = accepted_parameters(kernel, op_named(way.op))
    return tuple(form for form in FORMS[way.op] if form is None or form in accepted)


@lru_cache
def takes_chunks(way: Configuration) -> bool:
    """Whether the algorithm works in chunks, whose size can be chosen."""
    return kernel_of(way).chunk is not None


def in_chunks(
    ways: list[Configuration], chunks: tuple[int, ...]
) -> list[Configuration]:
    """The ways in each chunk size that they can have."""
    return [
        replace(way, chunk=chunk)
        for way, chunk in product(ways, chunks)
        if not way.variant.startswith("log") or chunk <= LARGEST_PAIRWISE_CHUNK
    ]


def other_algorithms() -> tuple[str, ...]:
    """The algorithms beside two passes over chunks."""
    return tuple(name for name in ALGORITHMS if name != "chunk")
