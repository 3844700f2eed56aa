"""What the speed benchmarks of CUDA kernels share: rows, clocks, ceilings and truth.

Times are medians of triton.testing.do_bench, which flushes the L2 cache between calls;
of what takes long, the time of one call. All of one group (shape and dtype) are
measured in one run, in two rounds, so that what disturbs one of them does not count.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from evidence import commit, table
from figures import Figure
from torch import Tensor

from scancheck.environment import describe
from scancheck.ops.normal_form import Op

DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
LONG_MS = 50.0
EXPS_PER_CLOCK = 16
"""Results of the special-function units of one multiprocessor, compute capability 7.5
to 9.0 (CUDA C++ Programming Guide, throughput of native arithmetic instructions)."""
CLOCK_RATE = 13  # cudaDevAttrClockRate, kHz
CAPTION = """\
Times are medians of triton.testing.do_bench, L2 flushed: the shorter of two, taken in
two rounds over all of one shape and dtype; of calls beyond 50 ms, one call's.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One kernel or peer on one shape and dtype."""

    shape: str
    dtype: str
    direction: str  # forward or backward
    kernel: str
    ms: float | None  # None: it does not run here
    copy: float  # bytes/s that a copy reads and writes in the same run
    error: float | None = None  # relative 2-norm against fp64
    extra: int | None = None  # bytes at the peak, beside inputs and results
    kept: int | None = None  # bytes that a forward pass keeps for the backward one
    note: str = ""
    commit: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What it is a row of."""
        return self.shape, self.dtype, self.direction, self.kernel


Found = Mapping[tuple[str, str, str, str], Timing]


def by_key(rows: Iterable[Timing]) -> dict[tuple[str, str, str, str], Timing]:
    """The rows, to be found."""
    return {row.key: row for row in rows}


def ratio(found: Found, above: tuple[str, ...], below: tuple[str, ...]) -> float | None:
    """How many times the first takes as long as the second; None: not both ran."""
    times = [row.ms if (row := found.get(key)) else None for key in (above, below)]
    return None if None in times else times[0] / times[1]


class Store:
    """Rows in a JSON file, with the environment that all of them were made in."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        """Takes up a file of an earlier run; SystemExit: of another environment."""
        self.path, self.environment = path, dict(environment)
        self.rows: list[Timing] = []
        if path.exists():
            made = json.loads(path.read_text(encoding="utf-8"))
            other = _differing(made["environment"], self.environment)
            if other:
                raise SystemExit(
                    f"{path} is of another environment: {'; '.join(other)}; remove it "
                    "first"
                )
            self.environment = made["environment"] | self.environment
            self.rows = [Timing(**row) for row in made["rows"]]

    def has(self, shape: str, dtype: str, direction: str) -> bool:
        """Whether there are rows of that group."""
        group = shape, dtype, direction
        return any(row.key[:3] == group for row in self.rows)

    def add(self, rows: Iterable[Timing]) -> None:
        """Keeps the rows, in place of older ones of the same key."""
        at = commit_here()
        new = by_key(replace(row, commit=at) for row in rows)
        self.rows = [row for row in self.rows if row.key not in new] + [*new.values()]
        data = {
            "schema_version": 1,
            "environment": self.environment,
            "rows": [asdict(row) for row in self.rows],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        os.replace(part, self.path)


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """What both tell and tell differently; what is told since says nothing of then."""
    return [
        f"{name} {old[name]} there, {new[name]} here"
        for name in old.keys() & new.keys()
        if old[name] != new[name]
    ]


def read(path: Path) -> tuple[list[Timing], dict[str, str]]:
    """Rows and environment of a finished run."""
    made = json.loads(path.read_text(encoding="utf-8"))
    return [Timing(**row) for row in made["rows"]], made["environment"]


def commit_here() -> str:
    """The commit; where there is no checkout, what SCANCHECK_COMMIT says."""
    return os.environ.get("SCANCHECK_COMMIT") or commit()


def environment(peers: Iterable[str]) -> dict[str, str]:
    """The environment with Triton and the peers, each with its version."""
    import importlib
    import importlib.metadata

    known = describe(full=True)
    for name in ("triton", *peers):
        try:
            known[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            try:
                module = importlib.import_module(name)
                known[name] = getattr(module, "__version__", "of unknown version")
            except ImportError:
                known[name] = "not installed"
    return known


def options_of(doc: str, output: str) -> argparse.ArgumentParser:
    """Options that all have."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument(
        "--only", default="", help="parts of shapes' names, comma-separated"
    )
    parser.add_argument("--page", action="store_true", help="from kept rows alone")
    parser.add_argument("-o", "--output", type=Path, default=Path(output))
    return parser


def time_of(call: Callable[[], Any]) -> float:
    """Median milliseconds of a call."""
    from triton.testing import do_bench

    once = time_once(call)
    if once > LONG_MS:
        return once
    return float(do_bench(call, warmup=10, rep=30, return_mode="median"))


def time_once(call: Callable[[], Any]) -> float:
    """Milliseconds of one call, the second."""
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def copy_rate() -> float:
    """Bytes per second that a copy of 2 GiB reads and writes."""
    source = torch.empty(2**29, device="cuda")
    target = torch.empty_like(source)
    return 2e3 * source.nbytes / time_of(lambda: target.copy_(source))


def exp_rate() -> float:
    """Exponentials per second of the special-function units at the highest clock."""
    import cupy

    kilohertz = cupy.cuda.runtime.deviceGetAttribute(CLOCK_RATE, 0)
    count = torch.cuda.get_device_properties(0).multi_processor_count
    return float(count * EXPS_PER_CLOCK * kilohertz * 1e3)


def measured(
    row: Timing,
    call: Callable[[], Any],
    truth: Tensor | None = None,
    timed: Callable[[Callable[[], Any]], float] = time_of,
) -> Timing:
    """The row with the time of a call, and the error of what it returns.

    Of a tuple the first is meant. What fails is told in a note.
    """
    try:
        error = None
        if truth is not None:
            got = call()
            error = error_of(got[0] if isinstance(got, tuple) else got, truth)
            del got
        return replace(row, ms=timed(call), error=error)
    except Exception as problem:
        first = str(problem).strip().partition("\n")[0]
        return replace(row, ms=None, note=f"{type(problem).__name__}: {first}"[:100])


class Job(NamedTuple):
    """What `measured` takes."""

    row: Timing
    call: Callable[[], Any]
    truth: Tensor | None = None
    timed: Callable[[Callable[[], Any]], float] = time_of


def in_rounds(jobs: Iterable[Job]) -> list[Timing]:
    """All jobs twice, one after the other; the shorter time of each counts."""
    jobs = list(jobs)
    found = [measured(*job) for job in jobs]
    for i, (row, job) in enumerate(zip(found, jobs, strict=True)):
        if row.ms is not None and row.ms <= LONG_MS:
            again = measured(row, job.call, timed=job.timed).ms
            if again is not None:
                found[i] = replace(row, ms=min(row.ms, again))
    return found


def error_of(got: Tensor, truth: Tensor) -> float:
    """Relative 2-norm of the difference."""
    return float((got.double() - truth).norm() / truth.norm())


def reference(
    op: Op, tensors: Mapping[str, Tensor], switches: Mapping[str, bool]
) -> Tensor:
    """The sequence output in fp64, by the certified oracle on the card.

    Raises ArithmeticError where the certificate is not far below any error of interest.
    """
    from scancheck.oracles import cuda_card
    from scancheck.oracles.cuda_fp64 import CudaFp64System, cuda_stretch
    from scancheck.oracles.engine import solve

    xp = cuda_card.arrays()
    wide = {name: xp.asarray(x.double()) for name, x in tensors.items()}
    stretch = cuda_stretch(False)
    solution = solve(CudaFp64System(), op, wide, switches, stretch=stretch)
    number = solution.outputs[op.outputs[0].name]
    value, radius = (torch.from_dlpack(part) for part in number.components)
    if float(radius.norm()) > 1e-10 * float(value.norm()):
        raise ArithmeticError("the reference is not certified to 1e-10")
    return value


def free_memory() -> None:
    """Hands unused memory of CuPy and torch back to the device."""
    from scancheck.oracles import cuda_card

    cuda_card.arrays().get_default_memory_pool().free_all_blocks()
    torch.cuda.empty_cache()


def figures_table(figures: Iterable[Figure]) -> str:
    """What is required beside what was measured."""
    lines = []
    for figure in figures:
        sign = ">=" if figure.at_least else "<="
        required = "-" if figure.target is None else f"{sign} {figure.target:.4g}"
        told = "" if figure.target is None else "PASS" if figure.passed else "FAIL"
        value = f"{figure.value:.3g} {figure.unit}".strip()
        lines.append((figure.name, figure.shape, required, value, told))
    return table(("figure", "where", "required", "measured", ""), lines)


def cell(value: float | None, form: str) -> str:
    """A number of a table; nothing where there is none."""
    return "" if value is None else format(value, form)


def told(environment: Mapping[str, str], rows: Iterable[Timing]) -> str:
    """Environment, commit and copy rate of the rows, as text."""
    rows = list(rows)
    rates = [row.copy / 1e9 for row in rows]
    commits = ", ".join(sorted({row.commit for row in rows}))
    copy = f"{min(rates):.0f} to {max(rates):.0f} GB/s" if rates else "not measured"
    known = ", ".join(f"{k} {v}" for k, v in sorted(environment.items()))
    return f"Commit {commits}. Copy {copy}.\n\nEnvironment: {known}\n"
