"""The CUDA kernels under NVIDIA's compute-sanitizer, and faults that it must report.

    python benchmarks/cuda_sanitizer.py [--update] [--match NAMES] [-o reports/h200]

Writes sanitizer.md and .csv: memcheck, racecheck, initcheck and synccheck over small
shapes with tails of every kernel, with all gradients, one process for each tool and
some kernels. torch hands out blocks of their own, so that memcheck sees each end. So
that a tool which sees nothing does not pass, each also runs a planted fault of its
kind, which it must report, and racecheck kernels from whose sources a barrier is
missing or is not waited for. Needs a CUDA device and compute-sanitizer, of the CUDA
toolkit. Exit code 1: a report on a kernel, or none on a fault.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import chain, product
from pathlib import Path

from cuda_cases import Case
from evidence import (
    Row,
    chosen,
    commit,
    environment,
    options_of,
    read_rows,
    table,
    write_rows,
)

from scancheck.kernels.cuda.selective_scan_instances import VARIANTS

COMMAND = "python benchmarks/cuda_sanitizer.py"
Edits = Mapping[str, tuple[tuple[str, str], ...]]
FIELDS = ("tool", "work", "calls", "reports", "first", "seconds", "commit")
WORKS = (
    *(f"selective_scan.sequential.{variant}" for variant in VARIANTS),
    "selective_scan.time",
    "linear_scan",
)
"""Parts of kernels' names. The kernels that choose an order have no others."""

MISSING_BARRIER = "missing barrier"
NOT_AWAITED = "gate not awaited"
EVERY_LANE_ARRIVES = {
    "selective_scan_rows.cuh": (
        ("Gate::open(gate, WARPS)", "Gate::open(gate, 32 * WARPS)"),
        ("if (sub_block == 0 && lane == 0) Gate", "if (sub_block == 0) Gate"),
    ),
    "selective_scan_time.cuh": (
        ("Gate::open(gate, WARPS)", "Gate::open(gate, 32 * WARPS)"),
        ("if (lane == 0) Gate::arrive", "Gate::arrive"),
    ),
}
"""For racecheck, by source (text, its replacement): it orders what the thread that
arrives at an mbarrier did before, not what the rest of its warp did before a
__syncwarp, which the memory model orders too (PTX ISA, "Causality order")."""
NOT_WAITING = {
    "selective_scan_rows.cuh": (
        ("if (next_step < steps) Gate::pass(gate, first_step / TILE % 2);", ""),
    )
}
GATED = "cuda.selective_scan.sequential.reproducible"
CONSTANT = "constant B and C"
DTYPES = ("fp32", "bf16")
CASES = {
    "linear_scan": (
        Case(sizes=(2, 70, 33), optional=("initial_state",), form="g"),
        Case(sizes=(1, 300, 33), optional=("initial_state",), form="g"),
    ),
    "selective_scan": (
        Case(
            sizes=(1, 33, 70, 3, 1),
            optional=("D", "z", "delta_bias", "initial_state", "delta_softplus"),
        ),
        # Rows of whole vectors, of two groups.
        Case(
            sizes=(1, 32, 72, 16, 2),
            optional=("D", "z", "delta_bias", "initial_state", "delta_softplus"),
        ),
        Case(sizes=(1, 5, 300, 20, 1)),
        Case(sizes=(2, 5, 70, 3, 1), form=CONSTANT),
    ),
}

FAULTS = {
    "memcheck": "x[n] = 1.0f;",
    "racecheck": (
        "__shared__ float row[64]; row[threadIdx.x] = x[threadIdx.x];"
        " x[threadIdx.x] = row[63 - threadIdx.x];"
    ),
    "initcheck": "x[threadIdx.x] += 1.0f;",
    "synccheck": "if (threadIdx.x % 2) __syncthreads(); else x[0] = 1.0f;",
}
"""By the tool that must report it; of 64 threads, x has n = 64 floats."""

SUMMARY = re.compile(
    r"(?:ERROR SUMMARY: (?P<errors>\d+) errors?"
    r"|RACECHECK SUMMARY: (?P<hazards>\d+) hazards? displayed)"
)
WORKED = re.compile(r"^worked (?P<calls>\d+)$", re.MULTILINE)
LIMIT_S = 300
TOLD = 4000  # characters of a tool's output, where it is not as it must be


def reports_of(output: str) -> int:
    """How many errors or hazards a tool tells; raises ValueError where it says none."""
    found = [int(m["errors"] or m["hazards"] or 0) for m in SUMMARY.finditer(output)]
    if not found:
        raise ValueError(
            f"expected a summary of compute-sanitizer; got {output[-300:]!r}"
        )
    return sum(found)


def first_of(output: str) -> str:
    """The first lines of the first report, in one."""
    lines = [
        line.removeprefix("=========").strip()
        for line in output.splitlines()
        if line.startswith("=========")
    ]
    told = [
        line
        for line in lines
        if line and not line.startswith(("COMPUTE-SANITIZER", "ERROR SUM", "RACECHECK"))
    ]
    return " / ".join(told[:3])[:200]


def row_of(tool: str, work: str, output: str, seconds: float) -> Row:
    """What a process printed, as a row."""
    calls = WORKED.search(output)
    return {
        "tool": tool,
        "work": work,
        "calls": calls["calls"] if calls else "0",
        "reports": str(reports_of(output)),
        "first": first_of(output),
        "seconds": f"{seconds:.0f}",
        "commit": commit(),
    }


def checked(tool: str, work: str) -> Row:
    """One tool over one op, or over its planted fault, in a process of its own."""
    import time

    started = time.monotonic()
    variables = os.environ | {
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "CUDA_MODULE_LOADING": "LAZY",
    }
    asked = tool if work == "fault" else work
    options = ["--work", asked]
    command = ["compute-sanitizer", "--tool", tool, "--print-limit", "5"]
    if tool == "racecheck":
        command += ["--racecheck-report", "all"]
        options += ["--every-lane"] if work in WORKS else []
    try:
        done = subprocess.run(
            [*command, sys.executable, __file__, *options],
            capture_output=True,
            text=True,
            env=variables,
            timeout=LIMIT_S,
            check=False,
        )
        output = done.stdout + done.stderr
        row = row_of(tool, work, output, time.monotonic() - started)
    except (subprocess.TimeoutExpired, ValueError) as error:
        row = dict.fromkeys(FIELDS, "0") | {"tool": tool, "work": work}
        return row | {"first": str(error)[:1000], "commit": commit()}
    if not as_it_must_be(row):
        print(output[-TOLD:], flush=True)
    return row


def rows(asked: list[tuple[str, str]]) -> Iterator[Row]:
    """As they come, side by side."""
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        futures = [executor.submit(checked, *pair) for pair in asked]
        for future in as_completed(futures):
            yield future.result()


def work_on(part: str) -> int:
    """Runs the kernels whose name has a part, with all gradients; the calls."""
    import torch
    from cuda_cases import drawn
    from cuda_graphs import call_of

    from scancheck.kernels.cuda.catalog import kernels

    calls = 0
    for kernel in (k for k in kernels() if part in k.name):
        for case, dtype in product(CASES[kernel.op], DTYPES):
            if case.form == CONSTANT and "keys=constant" not in kernel.layouts:
                continue
            given = drawn(kernel.name, case, dtype, "cuda")
            call_of(kernel.name, given, backwards=True)(given.tensors)
            calls += 1
        torch.cuda.synchronize()
    return calls


@contextmanager
def edited_sources(*edits: Edits) -> Iterator[None]:
    """Within, kernels are compiled from sources with these replacements, each once."""
    from scancheck.kernels.cuda import compile

    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "sources"
        shutil.copytree(compile.SOURCES, sources)
        for file, pairs in chain.from_iterable(edit.items() for edit in edits):
            text = (sources / file).read_text("utf-8")
            for old, new in pairs:
                if text.count(old) != 1:
                    raise SystemExit(f"{file}: expected once {old!r}")
                text = text.replace(old, new)
            (sources / file).write_text(text, "utf-8")
        with compile.sources_from(sources):
            yield


def work_without_barrier() -> int:
    """Runs a kernel whose source has lost a barrier."""
    from scancheck.kernels.faulty.cuda_sources import HIDDEN_RACE, planted

    with planted(HIDDEN_RACE):
        return work_on(HIDDEN_RACE.kernel)


def work_on_fault(tool: str) -> int:
    """Launches the fault of a tool."""
    import torch

    from scancheck.kernels.cuda.compile import function
    from scancheck.kernels.cuda.launch import launch

    body = FAULTS[tool]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "fault.cu"
        source.write_text(
            f"__global__ void fault(float* x, long long n) {{ {body} }}\n", "utf-8"
        )
        x = torch.empty(64, device="cuda")
        if tool != "initcheck":
            x.fill_(1.0)
        launch(function(str(source), "fault"), 1, (64,), (x.data_ptr(), x.numel()))
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            print(error)  # the tool ended the kernel
    return 1


def work_of(asked: str) -> int:
    """What a process inside a tool does; the calls."""
    if asked == MISSING_BARRIER:
        return work_without_barrier()
    if asked == NOT_AWAITED:
        with edited_sources(EVERY_LANE_ARRIVES, NOT_WAITING):
            return work_on(GATED)
    return work_on(asked) if asked in WORKS else work_on_fault(asked)


def as_it_must_be(row: Row) -> bool:
    """No report on kernels that were called, or one on a fault."""
    if row["work"] not in WORKS:
        return int(row["reports"]) > 0
    return int(row["reports"]) == 0 and int(row["calls"]) > 0


def page(found: list[Row]) -> str:
    """The rows as Markdown."""
    wrong = sum(not as_it_must_be(row) for row in found)
    commits = ", ".join(sorted({row["commit"] for row in found}))
    body = [
        (
            row["tool"],
            row["work"],
            row["calls"],
            row["reports"],
            row["first"].replace("|", "\\|") or "-",
            "PASS" if as_it_must_be(row) else "FAIL",
        )
        for row in found
    ]
    return (
        "# The CUDA kernels under compute-sanitizer\n\n"
        "A call is one kernel on one small shape and format, with all gradients; a "
        "fault is planted, of the kind that the tool is for, and must be reported, and "
        "so must a barrier that is taken out of a source, or is not waited for. "
        "Racecheck runs with every lane arriving at the barriers of warps, of which it "
        "follows only the threads that arrive. "
        f"{wrong} rows are not as they must be. Commit {commits}. Made by "
        f"`{COMMAND}`.\n\n"
        + table(("tool", "work", "calls", "reports", "first report", ""), body)
        + f"\n{environment()}\n"
    )


def run(
    asked: list[tuple[str, str]],
    folder: Path,
    kept: list[Row],
    check_all: Callable[[], Iterable[Row]],
) -> int:
    """Writes page and rows as they come; 1 where one is not as it must be."""
    found = {(row["tool"], row["work"]): row for row in kept}
    for row in check_all():
        found[row["tool"], row["work"]] = row
        print(*(row[k] for k in ("tool", "work", "calls", "reports")), flush=True)
        done = [found[key] for key in sorted(found)]
        write_rows(done, FIELDS, folder / "sanitizer.csv")
        (folder / "sanitizer.md").write_text(page(done), encoding="utf-8")
    good = (key in found and as_it_must_be(found[key]) for key in asked)
    return int(not all(good))


def main() -> int:
    """All tools, kernels and faults, or with --update those left."""
    parser = options_of(__doc__, "reports/h200")
    parser.add_argument("--work", help="inside a tool: what to run")
    parser.add_argument("--every-lane", action="store_true", help="with that, and so")
    options = parser.parse_args()
    if options.work is not None:
        edits = (EVERY_LANE_ARRIVES,) if options.every_lane else ()
        with edited_sources(*edits):
            print("worked", work_of(options.work), flush=True)
        return 0
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not installed", file=sys.stderr)
        return 2
    asked = [
        (tool, work)
        for work, tool in (
            *product((*WORKS, "fault"), FAULTS),
            *((fault, "racecheck") for fault in (MISSING_BARRIER, NOT_AWAITED)),
        )
        if chosen(f"{tool} {work}", options.match)
    ]
    kept = read_rows(options.output / "sanitizer.csv") if options.update else []
    kept = [row for row in kept if as_it_must_be(row)]
    settled = {(row["tool"], row["work"]) for row in kept}
    left = [pair for pair in asked if pair not in settled]
    return run(asked, options.output, kept, lambda: rows(left))


if __name__ == "__main__":
    sys.exit(main())
