"""Which instances of selective_scan.cu there are, and which one a call takes.

Told without torch, so that all of them can be listed and compiled anywhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from scancheck.errors import CaseInvalid

SOURCE = "selective_scan.cu"

STORAGE = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}

VARIANTS = {
    "fast": "Plain<Fast>",
    "reproducible": "Plain<Reproducible>",
    "tabulated": "Plain<Tabulated>",
    "accurate": "Compensated",
}
"""The recurrence of each variant, which has its functions."""

ROWS_STATES = 16
"""Most states of selective_scan_rows, and what its blocks are padded to."""

STATES = tuple(STORAGE)
"""Formats of the state. A short one is that of selective_scan_steps, which rounds to it
before every STATE_STEPS steps but the first."""
STATE_STEPS = 32

LARGEST_STATES = 256
LARGEST_STEPS = 2**31 - 2**10

ORDERS = ("sequential", "time")
"""In which steps are combined; what a result's bits depend on."""

CHANNELS_OF_ROWS = 92
"""B D per multiprocessor from which selective_scan_rows is faster than
selective_scan_time; measured on an H200 (132) at L = 2048."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What the choice of an instance depends on."""

    batch: int
    channels: int
    steps: int
    states: int
    groups: int
    constant_b: bool
    constant_c: bool
    aligned: bool  # rows of u, delta, z, B, C and y are whole 16-byte vectors
    shared: int  # bytes of shared memory that a block may have
    multiprocessors: int = 132  # an H200's
    state: str = "fp32"  # of STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One kernel and how it is launched."""

    order: str
    expression: str  # name in the source
    with_edges: str | None  # that of the kernel which keeps states, where there is one
    channels: int  # per block
    threads: int
    shared: int  # bytes of dynamic shared memory


def check_options(variant: str, order: str | None, state: str) -> None:
    """Raises CaseInvalid that names the option for which there is no kernel."""
    for what, known, got in (
        ("variant", tuple(VARIANTS), variant),
        ("order", (None, *ORDERS), order),
        ("state", STATES, state),
    ):
        if got not in known:
            raise CaseInvalid(
                f"selective_scan {what}: expected one of {', '.join(map(str, known))}; "
                f"got {got!r}"
            )
    if state != "fp32" and (order != "sequential" or variant == "accurate"):
        raise CaseInvalid(
            f"selective_scan state: expected fp32 with order {order} and {variant}; "
            f"got {state}, which order sequential alone takes, not with accurate"
        )


def blocks(problem: Problem, instance: Instance) -> int:
    """How many blocks cover the problem."""
    in_group = problem.channels // problem.groups
    return problem.batch * problem.groups * -(-in_group // instance.channels)


def chosen(
    problem: Problem, dtype: str, variant: str, order: str | None = None
) -> Instance:
    """The instance for a call.

    Raises CaseInvalid where no kernel of that order takes the problem.
    """
    for instance in candidates(problem, dtype, variant):
        if order in (None, instance.order):
            return instance
    raise CaseInvalid(
        f"selective_scan: the order {order} is for B and C that vary in time and any "
        f"but the accurate variant; got {variant}, or B or C of shape [D, N]"
    )


def candidates(problem: Problem, dtype: str, variant: str) -> list[Instance]:
    """Every instance that can take the problem, the preferred one first."""
    lanes = _lanes(problem.states)
    constant = problem.constant_b, problem.constant_c
    found = [steps(dtype, variant, lanes, *constant, problem.state)]
    if not any(constant) and problem.state == "fp32":
        if problem.states <= ROWS_STATES:
            found[:0] = _rows(problem, dtype, variant)
        if variant != "accurate":
            channels = problem.batch * problem.channels
            many = channels >= CHANNELS_OF_ROWS * problem.multiprocessors
            place = len(found) - 1 if many else 0
            found.insert(place, time(dtype, variant, problem.states, problem.aligned))
    return [instance for instance in found if instance.shared <= problem.shared]


def _rows(problem: Problem, dtype: str, variant: str) -> list[Instance]:
    if not problem.aligned:
        return [rows(dtype, variant, 4, False)]
    warps = _rows_warps(problem)
    return [rows(dtype, variant, n, True) for n in (warps, 16 - warps)]


def _rows_warps(problem: Problem) -> int:
    """Warps per block: 12, one block a multiprocessor, where they leave few idle.

    Else 4, three blocks a multiprocessor.
    """
    in_group = problem.channels // problem.groups
    count = problem.batch * problem.groups * in_group // 192
    rounds = -(-count // problem.multiprocessors)
    busy = count >= 0.9 * rounds * problem.multiprocessors
    return 12 if in_group % 192 == 0 and busy else 4


def _lanes(states: int) -> int:
    """Lanes per channel, 8 states each; at least two, as selective_scan_rows has."""
    lanes = 2
    while 8 * lanes < states:
        lanes *= 2
    return lanes


def rows(dtype: str, variant: str, warps: int, aligned: bool) -> Instance:
    """selective_scan_rows: many channels, at most 16 states."""
    vector = 16 // BYTES[dtype]
    channels = 16 * warps
    # u and delta twice, z once; B and C as floats three times; d, d u of a sub-block.
    floats = 3 * 8 * vector * 32 + channels * (4 * vector + 4)
    name = (
        f"selective_scan_rows<{STORAGE[dtype]}, {VARIANTS[variant]}, "
        f"{warps}, {1 if warps == 12 else 3}, {_flag(aligned)}, "
    )
    return Instance(
        order="sequential",
        expression=f"{name}false>",
        with_edges=f"{name}true>",
        channels=channels,
        threads=32 * warps,
        shared=channels * 5 * 128 + 4 * floats,
    )


def time(dtype: str, variant: str, states: int, aligned: bool) -> Instance:
    """selective_scan_time: few channels."""
    padded = -(-states // 16) * 16
    return Instance(
        order="time",
        expression=f"selective_scan_time<{STORAGE[dtype]}, {VARIANTS[variant]}, 12, "
        f"{_flag(aligned)}, {_flag(states > 16)}>",
        with_edges=None,
        channels=12,
        threads=384,
        # B and C three times; u, delta and z twice; ends, A and the state.
        shared=3 * 2 * 16 * 512 + 12 * (2 * 3 * 512 + 4 * (4 * 40 + 2 * padded)),
    )


def steps(
    dtype: str,
    variant: str,
    lanes: int,
    constant_b: bool,
    constant_c: bool,
    state: str,
) -> Instance:
    """selective_scan_steps: any shape and layout."""
    channels = 4 * 32 // lanes
    flags = f"{_flag(constant_b)}, {_flag(constant_c)}"
    name = (
        f"selective_scan_steps<{STORAGE[dtype]}, {VARIANTS[variant]}, {lanes}, "
        f"{flags}, {STORAGE[state]}>"
    )
    return Instance(
        order="sequential",
        expression=name,
        with_edges=name,
        channels=channels,
        threads=128,
        shared=4 * 32 * (16 * lanes + 4) + channels * 33 * 8,
    )


def _flag(value: bool) -> str:
    return "true" if value else "false"


def instances() -> Iterator[str]:
    """Every instance that a call can take."""
    for dtype, variant in product(STORAGE, VARIANTS):
        found = [rows(dtype, variant, warps, True) for warps in (4, 12)]
        found.append(rows(dtype, variant, 4, False))
        if variant != "accurate":
            for states, aligned in product((16, 17), (True, False)):
                found.append(time(dtype, variant, states, aligned))
        for lanes in (2, 4, 8, 16, 32):
            formats = STATES if variant != "accurate" else STATES[:1]
            flags = (False, True)
            for constant_b, constant_c, state in product(flags, flags, formats):
                found.append(
                    steps(dtype, variant, lanes, constant_b, constant_c, state)
                )
        for instance in found:
            yield instance.expression
            if instance.with_edges not in (None, instance.expression):
                yield instance.with_edges
