"""Which instances of selective_scan_backward.cu there are, and which one a call takes.

Told without torch, so that all of them can be listed and compiled anywhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from scancheck.kernels.cuda.selective_scan_instances import (
    BYTES,
    ROWS_STATES,
    STORAGE,
    Problem,
)

SOURCE = "selective_scan_backward.cu"

EDGE_STEPS = 32
"""Most steps between the states that the forward pass keeps."""

FUNCTIONS = {
    "fast": "Fast",
    "reproducible": "Reproducible",
    "tabulated": "Tabulated",
    "accurate": "Reproducible",
}
"""Of each variant of the forward pass; the adjoint has no rests."""

MANY_BLOCKS = 100
"""Of twelve warps, one a multiprocessor; fewer are made of four."""

ROWS_SUM = "selective_scan_backward_rows_sum"

WORKSPACE = 64 * 2**20
"""Bytes of partial sums of the gradients of B and C at a time."""

_FEWEST_STEPS = 512
"""Of a launch, as long as fewer batch rows save the workspace too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One kernel and how it is launched."""

    expression: str  # name in the source
    edge_steps: int  # between the states that it needs
    channels: int  # per block
    threads: int
    shared: int  # bytes of dynamic shared memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Batch rows and steps of one launch."""

    rows: slice
    begin: int
    end: int


def chosen(problem: Problem, dtype: str, variant: str) -> Instance:
    """The instance for a call."""
    in_group = problem.channels // problem.groups
    constant = problem.constant_b or problem.constant_c
    # A state in short is kept where selective_scan_steps rounds it.
    few = problem.states <= ROWS_STATES and not constant and problem.state == "fp32"
    if problem.aligned and few and in_group % 16 == 0:
        blocks = problem.batch * problem.groups * -(-in_group // 192)
        found = rows(dtype, variant, 12 if blocks >= MANY_BLOCKS else 4)
        if found.shared <= problem.shared:
            return found
    lanes = 2
    while 8 * lanes < problem.states:
        lanes *= 2
    return steps(dtype, variant, lanes, problem.constant_b, problem.constant_c)


def rows(dtype: str, variant: str, warps: int) -> Instance:
    """selective_scan_backward_rows: many channels, at most 16 states."""
    tile = 64 // BYTES[dtype]
    # Rows, states before each 4 steps, d and d u, the sums over channels.
    warp = 4 * 16 * 64 + tile // 4 * 1024 + tile * 128 + 2 * 4 * 8 * 36
    return Instance(
        expression=f"selective_scan_backward_rows<{STORAGE[dtype]}, "
        f"{FUNCTIONS[variant]}, {warps}, {1 if warps == 12 else 2}>",
        edge_steps=tile,
        channels=16 * warps,
        threads=32 * warps,
        shared=warps * warp + 2 * 4 * tile * 32,
    )


def steps(
    dtype: str, variant: str, lanes: int, constant_b: bool, constant_c: bool
) -> Instance:
    """selective_scan_backward_steps: any shape and layout."""
    warps, width = 4, 8 * lanes
    channels = warps * 32 // lanes
    flags = ", ".join("true" if flag else "false" for flag in (constant_b, constant_c))
    # d, d u and pbar; the states before each 4 steps; B and C; their gradients.
    vectors = channels * 33 + warps * 8 * 64
    floats = 32 * (2 * width + 4) + warps * 4 * 2 * width
    return Instance(
        expression=f"selective_scan_backward_steps<{STORAGE[dtype]}, "
        f"{FUNCTIONS[variant]}, {lanes}, {flags}>",
        edge_steps=EDGE_STEPS,
        channels=channels,
        threads=32 * warps,
        shared=16 * vectors + 4 * floats,
    )


def key_sum(dtype: str) -> str:
    """The kernel that adds the partial sums of blocks."""
    return f"selective_scan_backward_key_sum<{STORAGE[dtype]}>"


def parts(problem: Problem, instance: Instance) -> int:
    """Blocks of one group."""
    return -(-(problem.channels // problem.groups) // instance.channels)


def row_bytes(problem: Problem) -> int:
    """Of the sums over steps of one batch row: A, D, delta_bias, constant B and C."""
    per_state = 1 + problem.constant_b + problem.constant_c
    return 4 * problem.channels * (problem.states * per_state + 2)


def step_bytes(problem: Problem, instance: Instance) -> int:
    """Of the sums over channels of one step of one batch row: B and C."""
    if problem.constant_b and problem.constant_c:
        return 0
    return 8 * problem.states * problem.groups * parts(problem, instance)


def slices(problem: Problem, instance: Instance) -> list[Slice]:
    """Launches whose partial sums fit WORKSPACE, in their order.

    Of each batch row the last steps come first. One batch row and EDGE_STEPS steps are
    a launch even where they do not fit.
    """
    of_step, of_row = step_bytes(problem, instance), row_bytes(problem)
    most = -(-problem.steps // EDGE_STEPS) * EDGE_STEPS

    def length(rows: int) -> int:
        """The most steps that fit, whole EDGE_STEPS."""
        left = WORKSPACE - rows * of_row
        fitting = most if of_step == 0 else left // (rows * of_step)
        return max(fitting // EDGE_STEPS, 1) * EDGE_STEPS

    taken = min(max(length(problem.batch), _FEWEST_STEPS), length(1), most)
    count = -(-most // taken)
    taken = -(-most // count // EDGE_STEPS) * EDGE_STEPS
    rows = min(max(WORKSPACE // (of_row + of_step * taken), 1), problem.batch)
    return [
        Slice(
            rows=slice(row, min(row + rows, problem.batch)),
            begin=begin,
            end=min(begin + taken, problem.steps),
        )
        for row in range(0, problem.batch, rows)
        for begin in reversed(range(0, problem.steps, taken))
    ]


def instances() -> Iterator[str]:
    """Every instance that a call can take."""
    yield ROWS_SUM
    for dtype in STORAGE:
        yield key_sum(dtype)
        for variant, warps in product(("fast", "reproducible", "tabulated"), (4, 12)):
            yield rows(dtype, variant, warps).expression
        for variant, lanes in product(("fast", "reproducible", "tabulated"), range(5)):
            for flags in product((False, True), repeat=2):
                yield steps(dtype, variant, 2 * 2**lanes, *flags).expression
