"""Which instances of linear_scan's sources there are, and which one a call takes.

Told without torch, so that all of them can be listed and compiled anywhere.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

FORWARD, BACKWARD = "linear_scan.cu", "linear_scan_backward.cu"
_KERNELS = {FORWARD: "single_pass", BACKWARD: "single_pass_backward"}

STORAGE = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}

ORDERS = {128: (16, 8), 256: (16, 16)}
"""Rows and steps per row by chunk: the order of operations, the same for any shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How maps are combined, and what a step's decay is made from."""

    source: str  # the sources' name of it
    words: int  # numbers per channel that a chunk hands to the next one
    of_logs: str  # policy that makes a decay from its logarithm g
    of_decays: str | None = "GivenDecay"  # policy for a given decay a; None: g alone


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
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How a block covers channels; no result depends on it."""

    count: int  # channels per thread, loaded at once
    lanes: int  # threads side by side
    blocks: int  # blocks per multiprocessor that registers are limited for


def _tile(count: int, lanes: int, blocks: int) -> Tile:
    return Tile(count=count, lanes=lanes, blocks=blocks)


# By source, bytes per element and chunk; measured on an H200. The last of each takes
# any channel count and alignment.
_TILES = {
    (FORWARD, 4, 128): (_tile(2, 32, 2), _tile(1, 32, 2)),
    (FORWARD, 4, 256): (_tile(2, 16, 2), _tile(1, 32, 1)),
    (FORWARD, 2, 128): (_tile(4, 32, 2), _tile(1, 32, 2)),
    (FORWARD, 2, 256): (_tile(4, 16, 2), _tile(1, 32, 1)),
    (BACKWARD, 4, 128): (_tile(1, 32, 2),),
    (BACKWARD, 4, 256): (_tile(1, 32, 1),),
    (BACKWARD, 2, 128): (_tile(2, 32, 1), _tile(1, 32, 1)),
    (BACKWARD, 2, 256): (_tile(2, 16, 2), _tile(1, 32, 1)),
}


def tile_for(
    source: str, size: int, chunk: int, aligned: Callable[[int], bool]
) -> Tile:
    """The first tile for elements of `size` bytes that the tensors are aligned for."""
    tiles = _TILES[source, size, chunk]
    return next(t for t in tiles if t.count == 1 or aligned(t.count))


def instance(
    source: str, storage: str, variant: Variant, *, logs: bool, chunk: int, tile: Tile
) -> str:
    """The name expression; `storage` is what the sources call the dtype."""
    decay = variant.of_logs if logs else variant.of_decays
    rows, steps = ORDERS[chunk]
    return (
        f"{_KERNELS[source]}<{storage}, {decay}, {variant.source}, {tile.count}, "
        f"{tile.lanes}, {rows}, {steps}, {tile.blocks}>"
    )


def instances(source: str) -> Iterator[str]:
    """Every instance of a source that a call can take."""
    for dtype, variant, chunk in product(STORAGE, VARIANTS.values(), ORDERS):
        for tile in _TILES[source, 4 if dtype == "fp32" else 2, chunk]:
            for logs in (False, True):
                if logs or variant.of_decays is not None:
                    yield instance(
                        source,
                        STORAGE[dtype],
                        variant,
                        logs=logs,
                        chunk=chunk,
                        tile=tile,
                    )
