"""The page on the speed of selective_scan from its rows: figures first, then rows."""

from collections.abc import Callable, Iterator, Mapping

from cuda_speed import (
    CAPTION,
    DTYPES,
    Found,
    Timing,
    by_key,
    cell,
    figures_table,
    ratio,
    told,
)
from evidence import table
from figures import Figure

STATES = 16
MANY, FEW, LONG = "B16 D1536 L2048", "B1 D1536 L2048", "B1 D1536 L65536"
BETWEEN = {"B2 D1536 L2048": 2, "B4 D1536 L2048": 4, "B8 D1536 L2048": 8}
SLOW = ("slow gates, B16 D1536 L4096", "slow gates, B1 D1536 L4096")
SHAPES = {
    MANY: (16, 1536, 2048),
    FEW: (1, 1536, 2048),
    LONG: (1, 1536, 65536),
    **{name: (batch, 1536, 2048) for name, batch in BETWEEN.items()},
    SLOW[0]: (16, 1536, 4096),
    SLOW[1]: (1, 1536, 4096),
    "B8 D5120 L4096": (8, 5120, 4096),
}
BACKWARD = (MANY,)
VARIANTS = ("fast", "tabulated", "reproducible", "accurate")
PEER = "mamba_ssm"
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}

LEAST_TIMES_FASTER = {
    (MANY, "bf16"): 2.6,
    (MANY, "fp16"): 2.6,
    (MANY, "fp32"): 4.5,
    **{(FEW, dtype): 1.9 for dtype in DTYPES},
    **{(LONG, dtype): 2.3 for dtype in DTYPES},
}
MOST_TIMES_FAST = {"tabulated": 1.1, "reproducible": 2.0, "accurate": 3.0}
MOST_ERROR_OF_PEER = 1.05
LEAST_SLOW_GAIN = 30.0
LEAST_BACKWARD = 2.0
LARGEST_SUMS, SUMS_OF_INPUTS = 64 * 2**20, 0.1

WHAT = """\
N is 16; D, z, delta_bias and softplus are on. The share of the exp rate is B D L N
exponentials over the time, over what the special-function units do at the highest clock
of the device; softplus and silu take 3 more results of these units for every 16. The
share of a copy is bytes of u, delta, z, B, C and y over the time, over the rate of a
copy of 2 GiB in the same run. Errors are relative 2-norms of y against the certified
fp64 oracle on the stored inputs. The loop in PyTorch was timed once, on at most the
first 4096 steps, and scaled; the Triton loop is benchmarks/triton_scan.py. With a CUDA
graph, nothing that the host does is in the time.
"""
MEMORY = """\
Kept is what the forward pass keeps for the backward one beside its results and inputs;
extra what the backward pass holds at its peak beside the gradients: with it the partial
sums. Both in MiB, by torch's allocator. The time is that of the backward pass alone.
"""


def page(rows: list[Timing], environment: Mapping[str, str]) -> tuple[str, bool]:
    """The page as Markdown, and whether every figure is reached."""
    found, exps = by_key(rows), float(environment.get("exp_per_s", "nan"))
    figures = list(required(found))
    forward = [row for row in rows if row.direction == "forward"]
    backward = [row for row in rows if row.direction == "backward"]
    where = environment.get("cuda_device", "an unknown device")
    head = "shape", "dtype", "kernel", "ms", "times faster than mamba_ssm", "times fast"
    parts = [
        f"# Speed of selective_scan on {where}\n",
        f"Made by `python benchmarks/cuda_selective_scan.py`.\n\n{CAPTION}{WHAT}",
        "## What is required\n",
        figures_table(figures),
        "## Forward\n",
        table(
            (*head, "share of exp rate", "share of copy", "error", "note"),
            (_forward_cells(found, row, exps) for row in forward),
        ),
        f"## Backward\n\n{MEMORY}",
        table(
            (*head, "kept", "extra", "note"),
            (_backward_cells(found, row) for row in backward),
        ),
        told(environment, rows),
    ]
    return "\n".join(parts), all(figure.passed for figure in figures)


def required(found: Found) -> Iterator[Figure]:
    """The figures of all groups that were measured."""
    for (shape, dtype), least in LEAST_TIMES_FASTER.items():
        yield from _figure(
            "fast, times faster than mamba_ssm",
            f"{shape} {dtype}",
            _faster(found, shape, dtype, "forward", "fast"),
            least,
        )
    for dtype in DTYPES:
        for shape, batch in BETWEEN.items():
            times = ratio(found, _key(shape, dtype, "fast"), _key(FEW, dtype, "fast"))
            yield from _figure(
                "fast, time per element over that at B1",
                f"{shape} {dtype}",
                None if times is None else times / batch,
                1.0,
                at_least=False,
            )
    for variant, most in MOST_TIMES_FAST.items():
        yield from _largest(
            f"{variant}, times fast, at most",
            lambda shape, dtype, variant=variant: ratio(
                found, _key(shape, dtype, variant), _key(shape, dtype, "fast")
            ),
            most,
        )
    yield from _largest(
        "error of fast over mamba_ssm's, at most",
        lambda shape, dtype: (
            None if shape in SLOW else _error_ratio(found, shape, dtype, "fast", PEER)
        ),
        MOST_ERROR_OF_PEER,
    )
    yield from _slow_gates(found)
    yield from _backward(found)


def _slow_gates(found: Found) -> Iterator[Figure]:
    for shape in SLOW:
        for other, least in ((PEER, LEAST_SLOW_GAIN), ("fast", None)):
            yield from _figure(
                f"error of {other} over that of accurate",
                f"{shape} fp32",
                _error_ratio(found, shape, "fp32", other, "accurate"),
                least,
            )


def _backward(found: Found) -> Iterator[Figure]:
    for shape in BACKWARD:
        for dtype in DTYPES:
            where = f"{shape} {dtype}"
            yield from _figure(
                "backward of fast, times faster than mamba_ssm",
                where,
                _faster(found, shape, dtype, "backward", "fast"),
                LEAST_BACKWARD,
            )
            row = found.get((shape, dtype, "backward", "fast"))
            most = max(LARGEST_SUMS, SUMS_OF_INPUTS * input_bytes(shape, dtype))
            yield from _figure(
                "backward of fast, extra MiB",
                where,
                None if row is None or row.extra is None else row.extra / 2**20,
                most / 2**20,
                at_least=False,
            )


def _figure(
    name: str,
    where: str,
    value: float | None,
    target: float | None,
    *,
    at_least: bool = True,
) -> Iterator[Figure]:
    """The figure, where it was measured."""
    if value is not None:
        yield Figure(
            name=name,
            shape=where,
            value=value,
            unit="",
            target=target,
            at_least=at_least,
        )


def _largest(
    name: str, value: Callable[[str, str], float | None], most: float
) -> Iterator[Figure]:
    """The largest value of all shapes and dtypes, and where that is."""
    values = {
        f"{shape} {dtype}": known
        for shape in SHAPES
        for dtype in DTYPES
        if (known := value(shape, dtype)) is not None
    }
    if values:
        where = max(values, key=lambda place: values[place])
        yield from _figure(name, where, values[where], most, at_least=False)


def _key(shape: str, dtype: str, kernel: str) -> tuple[str, str, str, str]:
    return shape, dtype, "forward", kernel


def _faster(
    found: Found, shape: str, dtype: str, direction: str, kernel: str
) -> float | None:
    group = shape, dtype, direction
    return ratio(found, (*group, PEER), (*group, kernel))


def _error_ratio(
    found: Found, shape: str, dtype: str, above: str, below: str
) -> float | None:
    rows = [found.get(_key(shape, dtype, kernel)) for kernel in (above, below)]
    errors = [row.error if row else None for row in rows]
    return None if None in errors else errors[0] / errors[1]


def input_bytes(shape: str, dtype: str) -> int:
    """Of u, delta, z, B and C, and of A, D and delta_bias in fp32."""
    batch, channels, steps = SHAPES[shape]
    stored = 3 * batch * channels * steps + 2 * batch * STATES * steps
    return BYTES[dtype] * stored + 4 * channels * (STATES + 2)


def share_of_exps(row: Timing, exps: float) -> float | None:
    """Of the exponentials per second that the device can do."""
    batch, channels, steps = SHAPES[row.shape]
    if row.ms is None:
        return None
    return batch * channels * steps * STATES / (row.ms / 1e3) / exps


def share_of_copy(row: Timing) -> float | None:
    """Of the bytes that a copy moves in the same time."""
    batch, channels, steps = SHAPES[row.shape]
    if row.ms is None:
        return None
    moved = input_bytes(row.shape, row.dtype)
    moved += BYTES[row.dtype] * batch * channels * steps
    return moved / (row.ms / 1e3) / row.copy


def _common_cells(found: Found, row: Timing) -> tuple[str, ...]:
    group = row.key[:3]
    return (
        row.shape,
        row.dtype,
        row.kernel,
        cell(row.ms, ".4f"),
        cell(ratio(found, (*group, PEER), row.key), ".2f"),
        cell(ratio(found, row.key, (*group, "fast")), ".3f"),
    )


def _forward_cells(found: Found, row: Timing, exps: float) -> tuple[str, ...]:
    return (
        *_common_cells(found, row),
        cell(share_of_exps(row, exps), ".1%"),
        cell(share_of_copy(row), ".1%"),
        cell(row.error, ".3g"),
        row.note,
    )


def _backward_cells(found: Found, row: Timing) -> tuple[str, ...]:
    sizes = (None if x is None else x / 2**20 for x in (row.kept, row.extra))
    return (
        *_common_cells(found, row),
        *(cell(size, ".1f") for size in sizes),
        row.note,
    )
