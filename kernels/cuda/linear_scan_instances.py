"""Which instances of linear_scan.cu there are, and which one a call takes.

Told without torch, so that all of them can be listed and compiled anywhere.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

SOURCE = "linear_scan.cu"

STORAGE = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}
VARIANTS = {"plain": "PLAIN", "kahan": "KAHAN", "full": "FULL"}
WORDS = {"plain": 1, "kahan": 2, "full": 2}
"""Words per channel that a chunk hands to the next one."""

ORDERS = {128: (16, 8), 256: (16, 16)}
"""Rows and steps per row by chunk: the order of operations, the same for any shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How a block covers channels; no result depends on it."""

    count: int  # channels per thread, loaded at once
    lanes: int  # threads side by side
    blocks: int  # blocks per multiprocessor that registers are limited for


# By bytes per element and chunk; measured on an H200. The last of each takes any
# channel count and alignment.
_TILES = {
    (4, 128): (Tile(count=2, lanes=32, blocks=2), Tile(count=1, lanes=32, blocks=2)),
    (4, 256): (Tile(count=2, lanes=16, blocks=2), Tile(count=1, lanes=32, blocks=2)),
    (2, 128): (Tile(count=4, lanes=32, blocks=2), Tile(count=1, lanes=32, blocks=2)),
    (2, 256): (Tile(count=4, lanes=16, blocks=2), Tile(count=1, lanes=32, blocks=2)),
}


def tile_for(bytes_: int, chunk: int, aligned: Callable[[int], bool]) -> Tile:
    """The first tile whose vectors the tensors are aligned for."""
    return next(t for t in _TILES[bytes_, chunk] if t.count == 1 or aligned(t.count))


def instance(storage: str, variant: str, chunk: int, tile: Tile) -> str:
    """The name expression; `storage` is what the sources call the dtype."""
    rows, steps = ORDERS[chunk]
    return (
        f"single_pass<{storage}, GivenDecay, {VARIANTS[variant]}, {tile.count}, "
        f"{tile.lanes}, {rows}, {steps}, {tile.blocks}>"
    )


def instances() -> Iterator[str]:
    """Every instance that a call can take."""
    for storage, variant, chunk in product(STORAGE, VARIANTS, ORDERS):
        for tile in _TILES[4 if storage == "fp32" else 2, chunk]:
            yield instance(STORAGE[storage], variant, chunk, tile)
