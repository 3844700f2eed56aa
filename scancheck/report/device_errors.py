"""Measured errors of CUDA kernels beside those of their models, on the same cases."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scancheck.kernels.models.cuda_catalog import model_of
from scancheck.recipes.regimes import REGIMES
from scancheck.report.ways import excess
from scancheck.report.words import listed, plain_number, scientific, tokens
from scancheck.study.configurations import Configuration
from scancheck.study.device_plan import SECTION, exact_beside
from scancheck.study.row import Row

SUMMARY_STORAGE = "fp32"  # where the format itself hides no error


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One tensor of one CUDA kernel on one case, with the same of its models."""

    row: Row
    own: bool  # the model is the kernel's own, and has its bits
    model: Row | None
    exact: Row | None  # of the built-in model that rounds exactly

    @property
    def gate(self) -> str:
        """The recipe as a reader knows it."""
        return gate_title(self.row.recipe)

    @property
    def kernel(self) -> str:
        """Algorithm and variant."""
        return short_name(self.row.kernel)

    @property
    def same_bits(self) -> bool | None:
        """Whether the kernel has the bits of the model; None where there is none."""
        return None if self.model is None else self.row.bits == self.model.bits


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLine:
    """One CUDA kernel over all its cases: the worst of each number."""

    op: str
    kernel: str  # algorithm and variant
    errors: dict[str, float | None]  # RMS error in fp32, by gate
    excess: dict[str, float]  # over the error of storing, by shorter storage format
    times_model: float | None  # of the sequence output, RMS error over the model's
    times_exact: float | None
    max_ratio: float | None
    rho: float | None
    own: bool
    same: int  # tensors with the bits of the model
    compared: int  # with a model
    passed: int
    tensors: int


def device_lines(rows: Sequence[Row]) -> list[Line]:
    """Every tensor of every CUDA kernel, in the order of the rows."""
    mine = [row for row in rows if row.section == SECTION and row.kind == "case"]
    by_kernel = {(row.kernel, *_case(row)): row for row in mine}
    by_way = {(_way(row), *_case(row)): row for row in mine}
    lines = []
    for row in mine:
        name = model_of(row.kernel) if row.kernel.startswith("cuda.") else None
        if name is None:
            continue
        lines.append(
            Line(
                row=row,
                own=name.endswith(row.kernel),
                model=by_kernel.get((name, *_case(row))),
                exact=by_way.get((exact_beside(row.kernel, row.storage), *_case(row))),
            )
        )
    return lines


def _case(row: Row) -> tuple[object, ...]:
    return (row.storage, row.recipe, row.T, row.seed, row.cotangent, row.tensor)


def _way(row: Row) -> Configuration:
    return Configuration(
        op=row.op,
        storage=row.storage,
        algorithm=row.algorithm,
        variant=row.variant,
        state=None if row.state == row.compute else row.state,
        chunk=row.chunk,
    )


def gate_title(recipe: str) -> str:
    """An everyday gate's title; another recipe by its name."""
    return REGIMES[recipe].title if recipe in REGIMES else recipe


def short_name(kernel: str) -> str:
    """Algorithm and variant of a CUDA kernel."""
    return ".".join(kernel.split(".")[2:])


def times(row: Row, other: Row | None) -> float | None:
    """RMS error over that of another; None where there is none to compare with.

    1 where both are zero.
    """
    if other is None or row.rms_rel is None or other.rms_rel is None:
        return None
    if other.rms_rel == 0.0:
        return 1.0 if row.rms_rel == 0.0 else math.inf
    return row.rms_rel / other.rms_rel


def forward(lines: Iterable[Line]) -> list[Line]:
    """Those of sequence outputs without gradients."""
    return [x for x in lines if x.row.sequence and x.row.cotangent is None]


def by_gate(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Sequence outputs by gate."""
    found: dict[str, list[Line]] = {}
    for line in forward(lines):
        found.setdefault(line.gate, []).append(line)
    return found


def gradients(lines: Iterable[Line]) -> list[Line]:
    """Gradients alone."""
    return [x for x in lines if x.row.cotangent is not None and x.row.tensor[0] == "d"]


def kernel_lines(lines: Sequence[Line]) -> list[KernelLine]:
    """One line a kernel, in the order of the rows."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(line.row.kernel, []).append(line)
    return [_kernel_line(found) for found in groups.values()]


def _kernel_line(lines: list[Line]) -> KernelLine:
    outputs = forward(lines)
    shorter = dict.fromkeys(x.row.storage for x in outputs)
    shorter.pop(SUMMARY_STORAGE, None)
    first = lines[0]
    return KernelLine(
        op=first.row.op,
        kernel=first.kernel,
        errors={
            gate: _largest(
                x.row.rms_rel for x in found if x.row.storage == SUMMARY_STORAGE
            )
            for gate, found in by_gate(outputs).items()
        },
        excess={
            storage: max(excess(x.row) for x in outputs if x.row.storage == storage)
            for storage in shorter
        },
        times_model=_largest(times(x.row, x.model) for x in outputs),
        times_exact=_largest(times(x.row, x.exact) for x in outputs),
        max_ratio=_largest(x.row.max_ratio for x in lines),
        rho=_largest(x.row.rho for x in lines),
        own=first.own,
        same=sum(x.same_bits is True for x in lines),
        compared=sum(x.same_bits is not None for x in lines),
        passed=sum(x.row.verdict == "PASS" for x in lines),
        tensors=len(lines),
    )


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def device_sentences(rows: Sequence[Row]) -> list[str]:
    """What the sweep says in a few sentences; none without CUDA kernels."""
    lines = device_lines(rows)
    kernels = kernel_lines(lines)
    if not kernels:
        return []
    told = _verdicts(lines), _bits(kernels), _fast(kernels), *_spans(lines)
    return [text for text in told if text]


def _verdicts(lines: list[Line]) -> str:
    count = len({line.row.kernel for line in lines})
    kernels = f"{count} CUDA {'kernel' if count == 1 else 'kernels'}"
    others = [line for line in lines if line.row.verdict != "PASS"]
    if not others:
        return f"All {len(lines)} tensors of {kernels} are within their budgets."
    names = listed(dict.fromkeys(f"{x.row.op} {x.kernel}" for x in others))
    return f"{len(others)} of {len(lines)} tensors of {kernels} do not pass: {names}."


def _bits(kernels: list[KernelLine]) -> str:
    own = [line for line in kernels if line.own and line.compared]
    compared = sum(line.compared for line in own)
    if not compared:
        return ""
    who = "Variants that promise the bits of their CPU models"
    differing = [line for line in own if line.same < line.compared]
    if not differing:
        return f"{who} have them in all {compared} tensors."
    count = sum(line.compared - line.same for line in differing)
    names = listed(f"{line.op} {line.kernel}" for line in differing)
    return f"{who} have others in {count} of {compared} tensors: {names}."


def _fast(kernels: list[KernelLine]) -> str:
    worst = _largest(line.times_model for line in kernels if not line.own)
    if worst is None:
        return ""
    return (
        "Those that take the hardware's exponential have at most "
        f"{plain_number(worst, 3)} times the RMS error of the model with the "
        "reproducible one."
    )


def _spans(lines: list[Line]) -> list[str]:
    """By op the least and the largest error on the slowest gate, at the longest."""
    slow = next(iter(REGIMES))
    told = []
    for op in dict.fromkeys(line.row.op for line in lines):
        here = [
            line
            for line in forward(lines)
            if (line.row.op, line.row.recipe) == (op, slow)
            and line.row.storage == SUMMARY_STORAGE
            and line.row.rms_rel is not None
        ]
        longest = max((line.row.T for line in here), default=0)
        ends = sorted(
            (line for line in here if longest == line.row.T),
            key=lambda line: line.row.rms_rel or 0.0,
        )
        if ends:
            told.append(
                f"{op} in {SUMMARY_STORAGE}, {gate_title(slow)}, {tokens(longest)} "
                f"tokens: RMS error from {_end(ends[0])} to {_end(ends[-1])}."
            )
    return told


def _end(line: Line) -> str:
    return f"{scientific(line.row.rms_rel)} ({line.kernel})"
