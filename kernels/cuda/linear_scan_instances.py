"""Which instances of linear_scan's sources there are, and which one a call takes.

Told without torch, so that all of them can be listed and compiled anywhere.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from scancheck.errors import CaseInvalid

FORWARD, BACKWARD = "linear_scan.cu", "linear_scan_backward.cu"

STORAGE = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}

CHUNK = 256
"""Steps between two states that the forward pass keeps."""
CHUNKS = (64, 128, CHUNK, 512)
STEPS, BACKWARD_STEPS = 16, 8
"""How a chunk is cut into rows: the order of operations, the same for any shape."""

STATES = tuple(STORAGE)
"""Formats that a chunk hands its state on in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How maps are combined, and what a step's decay is made from."""

    source: str  # the sources' name of it
    words: int  # numbers per channel that a chunk hands to the next one
    of_logs: str  # policy that makes a decay from its logarithm g
    of_decays: str | None = "GivenDecay"  # policy for a given decay a; None: g alone

    @property
    def is_fast(self) -> bool:
        """Whether its exponential is the hardware's."""
        return "Fast" in self.of_logs


_EXP = "ExpDecay<scancheck::Reproducible>"
VARIANTS = {
    "plain": Variant(source="PLAIN", words=1, of_logs=_EXP),
    "kahan": Variant(source="KAHAN", words=2, of_logs=_EXP),
    "full": Variant(source="FULL", words=2, of_logs=_EXP),
    "fast": Variant(
        source="PLAIN", words=1, of_logs="ExpDecay<scancheck::Fast>", of_decays=None
    ),
    "segsum": Variant(
        source="LOG",
        words=1,
        of_logs="LogDecay<scancheck::Reproducible>",
        of_decays=None,
    ),
    "fast_segsum": Variant(
        source="FAST_LOG",
        words=1,
        of_logs="LogDecay<scancheck::Fast>",
        of_decays=None,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """The order inside a chunk and between chunks."""

    passes: tuple[str, ...]  # over the data; none: step by step
    rows: str = "IN_ORDER"  # how rows are combined
    carry: str | None = None  # the kernel between two passes


ALGORITHMS = {
    "single_pass": Algorithm(passes=("CHAINED",)),
    "single_pass_warps": Algorithm(passes=("CHAINED",), rows="SHUFFLE"),
    "single_pass_shared": Algorithm(passes=("CHAINED",), rows="SHARED"),
    "two_pass": Algorithm(passes=("TOTALS", "EDGES"), carry="carry_in_order"),
    "two_pass_carry_tree": Algorithm(
        passes=("TOTALS", "EDGES"), carry="carry_by_doubling"
    ),
    "sequential": Algorithm(passes=()),
}
WITH_OPTIONS = ("single_pass", "plain")
"""The algorithm and variant that take any chunk of CHUNKS and state of STATES."""

CARRY_LANES, CARRY_GROUPS, CARRY_THREADS = 32, 32, 128
STEPS_AHEAD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How a block covers channels and chunks; no result depends on it."""

    count: int  # channels per thread, loaded at once
    lanes: int  # threads side by side
    blocks: int  # blocks per multiprocessor that registers are limited for
    chunks: int = 1  # per block of a forward pass: the second in shared memory
    floats: bool = False  # whether decays made from 16 bits are kept in shared memory


# By bytes per element; measured on an H200 among 1, 2 and 4 channels a thread, 4 to 32
# lanes and 1 to 6 blocks. A row of a forward tile is a line of 128 bytes: half of one
# costs 15 % of the speed. Two blocks of 256 threads have all registers; of smaller ones
# less is under way or spilled. The last of each takes any channel count and alignment.
_FORWARD = {
    4: (Tile(count=2, lanes=16, blocks=2), Tile(count=1, lanes=32, blocks=1)),
    2: (Tile(count=4, lanes=16, blocks=2), Tile(count=1, lanes=32, blocks=1)),
}
_BACKWARD = {
    4: (Tile(count=2, lanes=8, blocks=2), Tile(count=1, lanes=16, blocks=1)),
    2: (Tile(count=4, lanes=8, blocks=2), Tile(count=1, lanes=16, blocks=1)),
}
# Where the polynomial of the exponential would be gone through twice: a fifth faster.
_FLOATS = Tile(count=4, lanes=16, blocks=2, floats=True)
# Where chains are few: 0.95 of a copy instead of 0.84 at [1, 65536, 2048]. With 16 bits
# alone: in fp32 a block takes twice as long, and its links less than it.
_TWO_CHUNKS = Tile(count=4, lanes=16, blocks=2, chunks=2)
_STEP_BY_STEP = {
    4: (Tile(count=1, lanes=64, blocks=1),),
    2: (Tile(count=2, lanes=64, blocks=1), Tile(count=1, lanes=64, blocks=1)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What a kernel is made for."""

    storage: str  # what the sources call the dtype
    size: int  # bytes of an element
    variant: Variant
    logs: bool  # decays are given as logarithms
    chunk: int = CHUNK  # steps per chunk, of CHUNKS
    state: str = "fp32"  # format that a state is handed on in, of STATES

    @property
    def rows(self) -> int:
        """Rows of a chunk in the forward pass."""
        return self.chunk // STEPS

    @property
    def backward_rows(self) -> int:
        """Rows of a chunk in the backward pass."""
        return self.chunk // BACKWARD_STEPS

    @property
    def arguments(self) -> str:
        """Template arguments that every kernel over the data begins with."""
        decay = self.variant.of_logs if self.logs else self.variant.of_decays
        return f"{self.storage}, {decay}, {self.variant.source}"


def check_options(algorithm: str, variant: str, chunk: int, state: str) -> None:
    """Raises CaseInvalid that names the option for which there is no kernel."""
    for what, known, got in (
        ("algorithm", tuple(ALGORITHMS), algorithm),
        ("variant", tuple(VARIANTS), variant),
        ("chunk", CHUNKS, chunk),
        ("state", STATES, state),
    ):
        if got not in known:
            raise CaseInvalid(
                f"linear_scan {what}: expected one of {', '.join(map(str, known))}; "
                f"got {got!r}"
            )
    has_options = (algorithm, variant) == WITH_OPTIONS
    for what, default, got in (("chunk", CHUNK, chunk), ("state", "fp32", state)):
        if got != default and not has_options:
            raise CaseInvalid(
                f"linear_scan {what}: expected {default} with {algorithm} and "
                f"{variant}; got {got}, which {' and '.join(WITH_OPTIONS)} alone take"
            )


def tile_for(tiles: tuple[Tile, ...], aligned: Callable[[int], bool]) -> Tile:
    """The first tile that the tensors are aligned for."""
    return next(tile for tile in tiles if tile.count == 1 or aligned(tile.count))


def few_chains(batches: int, channels: int, chunks: int, multiprocessors: int) -> bool:
    """Whether so many chunks of a chain are computed at once that its latency counts.

    A link takes 0.9 us on an H200, and a block about 7: with four or more links of a
    chain at once, of two blocks on every multiprocessor, blocks wait for one another.
    False where blocks of twice the size would leave multiprocessors idle.
    """
    link = batches * -(-channels // (_TWO_CHUNKS.count * _TWO_CHUNKS.lanes))
    return 2 * link <= multiprocessors and link * chunks >= 4 * multiprocessors


def forward_tiles(form: Form, algorithm: Algorithm, *, few: bool) -> tuple[Tile, ...]:
    """Tiles of a forward pass, the preferred one first; `few` as `few_chains` says."""
    if not algorithm.passes:
        return _STEP_BY_STEP[form.size]
    tiles = _in_chunks(form, _FORWARD[form.size])
    if form.size == 4 or ALGORITHMS["single_pass"] != algorithm or form.chunk != CHUNK:
        return tiles
    if form.logs and not form.variant.is_fast:
        return (_FLOATS, *tiles[1:])
    # The fully compensated step is bound by its instructions, not by the chain.
    if few and form.variant.source != "FULL":
        return (_TWO_CHUNKS, *tiles[1:])
    return tiles


def backward_tiles(form: Form) -> tuple[Tile, ...]:
    """Tiles of the backward pass, the preferred one first."""
    return _in_chunks(form, _BACKWARD[form.size])


def _in_chunks(form: Form, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
    """As many threads per multiprocessor as with chunks of CHUNK steps."""
    return tuple(
        replace(tile, blocks=max(1, tile.blocks * CHUNK // form.chunk))
        for tile in tiles
    )


def forward(form: Form, algorithm: Algorithm, which: str, tile: Tile) -> str:
    """The instance of one pass over chunks."""
    return (
        f"forward<{which}, {form.arguments}, {algorithm.rows}, {tile.count}, "
        f"{tile.lanes}, {form.rows}, {STEPS}, {tile.chunks}, "
        f"{str(tile.floats).lower()}, {tile.blocks}, {STORAGE[form.state]}>"
    )


def forward_shared(form: Form, tile: Tile) -> int:
    """Bytes of dynamic shared memory that a block of that instance takes."""
    elements = tile.count * tile.lanes * form.chunk
    copies = 2 * form.size * elements * (tile.chunks - 1)
    return copies + (4 * elements if tile.floats else 0)


def sequential(form: Form, tile: Tile) -> str:
    """The instance that goes step by step."""
    return (
        f"sequential<{form.arguments}, {tile.count}, {tile.lanes}, {STEPS_AHEAD}, "
        f"{CHUNK}>"
    )


def carry(variant: Variant, algorithm: Algorithm) -> str:
    """The instance between two passes."""
    if algorithm.carry == "carry_by_doubling":
        return f"{algorithm.carry}<{variant.source}, {CARRY_LANES}, {CARRY_GROUPS}>"
    return f"{algorithm.carry}<{variant.source}>"


def backward(form: Form, tile: Tile) -> str:
    """The instance of the backward pass."""
    return (
        f"single_pass_backward<{form.arguments}, {tile.count}, {tile.lanes}, "
        f"{form.backward_rows}, {BACKWARD_STEPS}, {tile.blocks}, {STORAGE[form.state]}>"
    )


def backward_shared(form: Form, tile: Tile) -> int:
    """Bytes of dynamic shared memory that a block of that instance takes: decays."""
    if form.size == 4 or not form.logs:
        return 0
    return 4 * tile.count * tile.lanes * form.backward_rows * (BACKWARD_STEPS + 1)


def instances(source: str) -> tuple[str, ...]:
    """Every instance of a source that a call can take."""
    found: dict[str, None] = {}
    for form, algorithm in _calls():
        if source == BACKWARD:
            names = [backward(form, tile) for tile in backward_tiles(form)]
        else:
            names = list(_forward_instances(form, algorithm))
        found |= dict.fromkeys(names)
    return tuple(found)


def _calls() -> Iterator[tuple[Form, Algorithm]]:
    """Every combination that a call can ask for."""
    yield from product(_forms(), ALGORITHMS.values())
    algorithm, variant = ALGORITHMS[WITH_OPTIONS[0]], VARIANTS[WITH_OPTIONS[1]]
    for form, chunk, state in product(_forms(), CHUNKS, STATES):
        if form.variant == variant:
            yield replace(form, chunk=chunk, state=state), algorithm


def _forms() -> Iterator[Form]:
    for dtype, variant, logs in product(STORAGE, VARIANTS.values(), (False, True)):
        if logs or variant.of_decays is not None:
            yield Form(
                storage=STORAGE[dtype],
                size=4 if dtype == "fp32" else 2,
                variant=variant,
                logs=logs,
            )


def _forward_instances(form: Form, algorithm: Algorithm) -> Iterator[str]:
    tiles = {
        tile: None
        for few in (False, True)
        for tile in forward_tiles(form, algorithm, few=few)
    }
    for tile in tiles:
        if not algorithm.passes:
            yield sequential(form, tile)
        for which in algorithm.passes:
            yield forward(form, algorithm, which, tile)
    if algorithm.carry is not None:
        yield carry(form.variant, algorithm)
