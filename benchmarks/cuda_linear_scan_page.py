"""The page on the speed of linear_scan from its rows: figures first, then all rows."""

from collections.abc import Callable, Iterator, Mapping

from cuda_speed import CAPTION, DTYPES, Found, Timing, by_key, cell, figures_table, told
from evidence import table
from figures import Figure

SHAPES = {"B8 T4096 D2048": (8, 4096, 2048), "B1 T65536 D2048": (1, 65536, 2048)}
PLAIN = "single_pass.plain"
ARRAYS = {"forward": 3, "backward": 5}
"""Of the size of h that must be read or written: gate, drive, h; gate, drive, the
cotangent of h, and two gradients."""
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
LEAST_SHARE = {"fp32": 0.95, "fp16": 0.90, "bf16": 0.90}
COMPENSATED = ("kahan", "full", "segsum", "fast_segsum")
MOST_TIMES_PLAIN = 1.1
PEERS = {"accelerated_scan.scalar": 1.0, "fla.chunk_hgrn": 2.0}
"""How many times the plain kernel's speed each is required to be behind."""

WHAT = """\
The share is bytes that must be read and written, three arrays forward and five
backward, over the time, over the rate of a copy of 2 GiB in the same run. Errors are
relative 2-norms against the certified fp64 oracle on the stored inputs: of decays a, or
of their stored logarithms g for the kernels that take those (fast, segsum, fast_segsum,
fla). accelerated_scan has its own layout, [B, C, T], in which its inputs were laid
before. The loop in PyTorch was timed once on the first 4096 steps and scaled.
"""


def page(rows: list[Timing], environment: Mapping[str, str]) -> tuple[str, bool]:
    """The page as Markdown, and whether every figure is reached."""
    found = by_key(rows)
    figures = list(required(found))
    head = "shape", "dtype", "direction", "kernel", "ms", "share of copy"
    parts = [
        "# Speed of linear_scan on "
        + environment.get("cuda_device", "an unknown device")
        + "\n",
        f"Made by `python benchmarks/cuda_linear_scan.py`.\n\n{CAPTION}{WHAT}",
        "## What is required\n",
        figures_table(figures),
        "## All kernels\n",
        table((*head, "times plain", "error", "note"), map(_cells(found), rows)),
        told(environment, rows),
    ]
    return "\n".join(parts), all(figure.passed for figure in figures)


def required(found: Found) -> Iterator[Figure]:
    """The figures of every shape and dtype that was measured."""
    for shape in SHAPES:
        for dtype in DTYPES:
            plain = found.get((shape, dtype, "forward", PLAIN))
            if plain is None or plain.ms is None:
                continue
            where = f"{shape} {dtype}"
            least = LEAST_SHARE[dtype]
            yield Figure(
                name="plain, share of copy",
                shape=where,
                value=share(plain),
                unit="",
                target=least,
            )
            yield from _ratios(found, plain, where)


def _ratios(found: Found, plain: Timing, where: str) -> Iterator[Figure]:
    """The other kernels over the plain one."""
    assert plain.ms is not None
    group = plain.shape, plain.dtype, "forward"
    for variant in COMPENSATED:
        other = found.get((*group, f"single_pass.{variant}"))
        if other is not None and other.ms is not None:
            yield Figure(
                name=f"{variant}, times plain",
                shape=where,
                value=other.ms / plain.ms,
                unit="",
                target=MOST_TIMES_PLAIN,
                at_least=False,
            )
    for peer, least in PEERS.items():
        other = found.get((*group, peer))
        if other is not None and other.ms is not None:
            yield Figure(
                name=f"{peer} over plain",
                shape=where,
                value=other.ms / plain.ms,
                unit="",
                target=least,
            )


def share(row: Timing) -> float:
    """Bytes that must move over those that a copy moves in the same time."""
    B, T, D = SHAPES[row.shape]
    assert row.ms is not None
    moved = ARRAYS[row.direction] * BYTES[row.dtype] * B * T * D
    return moved / (row.ms / 1e3) / row.copy


def _cells(found: Found) -> Callable[[Timing], tuple[str, ...]]:
    def cells(row: Timing) -> tuple[str, ...]:
        plain = found.get((*row.key[:3], PLAIN))
        times = None
        if plain is not None and plain.ms is not None and row.ms is not None:
            times = row.ms / plain.ms
        return (
            *row.key,
            cell(row.ms, ".4f"),
            cell(None if row.ms is None else share(row), ".3f"),
            cell(times, ".3f"),
            cell(row.error, ".3g"),
            row.note,
        )

    return cells
