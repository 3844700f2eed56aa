"""The bench of the field: every adapter's verdict in every dtype, resumable.

    python benchmarks/field.py [--device cuda] [--update] [--match NAMES] [-o FOLDER]
        [--workers LINES_AT_A_TIME]

Writes FOLDER/README.md and rows.csv (default reports/field/cpu), and for each line the
whole verdict as JSON. A line is one kernel in one dtype, judged by the quick profile
with gradients where it has them, in a process of its own: so a crash or a hang costs
one line, and what a kernel compiles is compiled once for all cases; with four cores or
more to a line, by several processes beforehand. Rounding is told in bits: the median
over cases of -log2(RMS error / RMS value), by tensor the worst. Exit code 1: a process
that ended without a verdict.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from compile_ahead import compile_ahead
from evidence import (
    Row,
    commit,
    environment,
    options_of,
    read_rows,
    table,
    write_rows,
)

if TYPE_CHECKING:
    from scancheck.checks.oracle import CaseReport
    from scancheck.kernel import Kernel

COMMAND = "python benchmarks/field.py"
FIELDS = (
    "kernel",
    "op",
    "dtype",
    "device",
    "version",
    "verdict",
    "cases",
    "red",
    "worst_ratio",
    "worst_rho",
    "bits",
    "findings",
    "first_case",
    "reason",
    "seconds",
    "commit",
)
SHOWN = (
    "kernel",
    "dtype",
    "verdict",
    "cases",
    "red",
    "worst_ratio",
    "worst_rho",
    "bits",
    "findings",
)
LIMIT_S = 1500.0
CASE_LIMIT_S = 180.0  # of a call, which may compile a dozen kernels beside other lines
# Names of kernels that compile for long, and the fewest cores to share that between.
COMPILED, AHEAD = ("fla.chunk_", "mamba_ssm.mamba_chunk", "mlstm_kernels.chunk"), 4
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # of the libraries beside ours
NOT_JUDGED = "not judged"
Line = tuple[str, str]


class Bits:
    """Effective precision of each output, case by case."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {}

    def __call__(self, done: int, total: int, report: "CaseReport") -> None:
        """Takes in a case; what is not finite, or exact, has no precision to tell."""
        for name, metrics in report.metrics.items():
            exact = report.truth.outputs[name].hi
            error = metrics.error
            if not error.size or not np.isfinite(error).all():
                continue
            size, off = (float(np.sqrt(np.mean(x * x))) for x in (exact, error))
            if off > 0.0 and np.isfinite(size) and size > 0.0:
                self.found.setdefault(name, []).append(-np.log2(off / size))

    def worst(self) -> str:
        """The least median of all tensors."""
        medians = [float(np.median(x)) for x in self.found.values()]
        return f"{min(medians):.1f}" if medians else ""


def judged(
    name: str, dtype: str, device: str, seed: int, record: Path, cores: int = 1
) -> Row:
    """One line, in this process."""
    from scancheck import verify
    from scancheck.errors import ScancheckError
    from scancheck.registry import resolve_target

    bits = Bits()
    row = dict.fromkeys(FIELDS, "") | {"kernel": name, "dtype": dtype}
    row |= {"device": device, "verdict": NOT_JUDGED}
    try:
        (kernel,) = resolve_target(name, None)
        row["op"] = kernel.op
        row["reason"] = kernel.no_gradients or ""
        if name.startswith(COMPILED) and device != "cpu" and cores >= AHEAD:
            compile_ahead(kernel, dtype, device, seed, cores)
        result = verify(
            name,
            dtypes=[dtype],
            gradients=kernel.gradients,
            seed=seed,
            device=device,
            case_limit_s=CASE_LIMIT_S,
            json_path=record,
            on_case=bits,
        )
    except ScancheckError as error:
        return row | {"reason": str(error).splitlines()[0]}
    found = result.record
    red = sum(found.counts.get(v, 0) for v in ("FAIL", "SUSPECT", "NONFINITE", "ERROR"))
    told = [f"{f.verdict} {f.tensor or f.check}: {f.cause}" for f in found.findings]
    row |= {
        "verdict": found.verdict,
        "cases": str(sum(found.counts.values())),
        "red": str(red),
        "worst_ratio": _largest(found.worst_ratio),
        "worst_rho": _largest(found.worst_rho),
        "bits": bits.worst(),
        "findings": "; ".join(told),
        "first_case": found.findings[0].case_id if found.findings else "",
    }
    return row


def _largest(values: dict[str, float | None]) -> str:
    finite = [value for value in values.values() if value is not None]
    return f"{max(finite):.3g}" if finite else ""


def lines(match: str) -> Iterator[tuple["Kernel", str]]:
    """Every adapter that runs here, in each of its dtypes."""
    from scancheck.adapters.catalog import adapters

    for kernel in adapters():
        for dtype in kernel.dtypes:
            if any(part in f"{kernel.name} {dtype}" for part in match.split(",")):
                yield kernel, dtype


def row_of(
    kernel: "Kernel", dtype: str, device: str, seed: int, folder: Path, cores: int
) -> Row:
    """The line by a process of its own on so many cores, with what became of that."""
    record = folder / f"{kernel.name}-{dtype}.json"
    words = ["--line", f"{kernel.name} {dtype}", "--device", device]
    words += ["--seed", str(seed), "--record", str(record), "--cores", str(cores)]
    row = dict.fromkeys(FIELDS, "") | {"kernel": kernel.name, "dtype": dtype}
    row |= {"op": kernel.op, "device": device, "verdict": NOT_JUDGED}
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, __file__, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
            env=os.environ | dict.fromkeys(THREADS, str(cores)),
        )
        told = [x for x in done.stdout.splitlines() if x.startswith("{")]
        if told:
            row |= json.loads(told[-1])
        else:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            row["reason"] = f"process ended with {done.returncode}: {last}"
    except subprocess.TimeoutExpired:
        row["reason"] = f"not done in {LIMIT_S:.0f} s"
    row |= {"seconds": f"{time.monotonic() - started:.0f}", "commit": commit()}
    return row | {"version": version_of(kernel.name)}


def version_of(name: str) -> str:
    """The package and its version that a kernel is from."""
    from importlib.metadata import PackageNotFoundError, version

    from stranger_list import PACKAGES

    package = PACKAGES[name.split(".")[0]][0]
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return package


def findings_of(row: Row, folder: Path) -> Iterator[str]:
    """A line for each cause: its tensors, what was seen first, and how to replay it."""
    path = folder / f"{row['kernel']}-{row['dtype']}.json"
    if row["verdict"] in ("PASS", NOT_JUDGED) or not path.is_file():
        return
    by_cause: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(path.read_text(encoding="utf-8"))["findings"]:
        key = f"{finding['verdict']} {finding['cause']}"
        by_cause.setdefault(key, []).append(finding)
    for key, alike in by_cause.items():
        tensors = dict.fromkeys(x["tensor"] or x["check"] for x in alike)
        yield (
            f"- {row['kernel']} {row['dtype']}, {key.replace('_', ' ')} "
            f"({', '.join(tensors)}): {alike[0]['reason']}. `{alike[0]['replay']}`\n"
        )


def page(found: list[Row], device: str, folder: Path) -> str:
    """The rows as Markdown."""
    counts: dict[str, int] = {}
    for row in found:
        counts[row["verdict"]] = counts.get(row["verdict"], 0) + 1
    verdicts = ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items()))
    commits = ", ".join(sorted({row["commit"] for row in found}))
    versions = ", ".join(sorted({row["version"] for row in found}))

    def reasons(judged: bool) -> str:
        return "".join(
            f"- {row['kernel']} {row['dtype']}: {row['reason']}\n"
            for row in found
            if row["reason"] and (row["verdict"] != NOT_JUDGED) == judged
        )

    told = "".join(one for row in found for one in findings_of(row, folder))
    outputs_alone, left = reasons(judged=True), reasons(judged=False)
    return (
        f"# Other people's kernels, judged on {device}\n\n"
        f"{len(found)} kernels x dtypes: {verdicts}. Of {versions}. The whole verdict "
        "of each line is beside this page as JSON; its cases are replayed with "
        "`scancheck verify KERNEL --dtype D --case ID`. rho: largest RMS error over "
        "the predicted one; bits: effective precision of the worst output, median over "
        "cases. Commit "
        f"{commits}. Made by `{COMMAND}`.\n\n"
        + table(
            [name.replace("_", " ") for name in SHOWN],
            [[row[name] or "-" for name in SHOWN] for row in found],
        )
        + (f"\nFindings, the first case of each cause:\n\n{told}" if told else "")
        + (f"\nWithout gradients:\n\n{outputs_alone}" if outputs_alone else "")
        + (f"\nNot judged:\n\n{left}" if left else "")
        + f"\n{environment()}\n"
    )


def run(
    asked: list[tuple["Kernel", str]],
    folder: Path,
    device: str,
    seed: int,
    *,
    update: bool,
    workers: int = 1,
) -> list[Row]:
    """Judges what is asked for, or with `update` what is left; all rows of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = read_rows(folder / "rows.csv") if update else []
    found = {line_of(row): row for row in kept if row["verdict"] != NOT_JUDGED}
    left = [one for one in asked if (one[0].name, one[1]) not in found]

    cores = max(1, (os.cpu_count() or 1) // workers)

    def line(one: tuple["Kernel", str]) -> Row:
        kernel, dtype = one
        if kernel.unavailable is None:
            return row_of(kernel, dtype, device, seed, folder, cores)
        row = dict.fromkeys(FIELDS, "") | {"kernel": kernel.name, "dtype": dtype}
        row |= {"op": kernel.op, "device": device, "verdict": NOT_JUDGED}
        row |= {"reason": kernel.unavailable, "commit": commit()}
        return row | {"version": version_of(kernel.name)}

    with ThreadPoolExecutor(workers) as executor:
        for future in as_completed(executor.submit(line, one) for one in left):
            row = future.result()
            found[line_of(row)] = row
            told = row["verdict"], row["reason"], row["seconds"]
            print(*line_of(row), *told, flush=True)
            done = sorted(found.values(), key=line_of)
            write_rows(done, FIELDS, folder / "rows.csv")
            (folder / "README.md").write_text(
                page(done, device, folder), encoding="utf-8"
            )
    return list(found.values())


def line_of(row: Row) -> Line:
    """What identifies a row."""
    return row["kernel"], row["dtype"]


def main() -> int:
    """Judges all adapters; inside a process, one line."""
    parser = options_of(__doc__, "reports/field/cpu")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="lines at a time")
    parser.add_argument("--line", help="inside a process: the kernel and its dtype")
    parser.add_argument("--record", type=Path, help="where its verdict goes")
    parser.add_argument("--cores", type=int, default=1, help="and how many it may use")
    options: Any = parser.parse_args()
    if options.line is not None:
        from scancheck.oracles import threads

        threads.keep_to(options.cores)
        name, dtype = options.line.split()
        row = judged(
            name, dtype, options.device, options.seed, options.record, options.cores
        )
        print(json.dumps({k: v for k, v in row.items() if v}), flush=True)
        return 0
    asked = list(lines(options.match))
    rows = run(
        asked,
        options.output,
        options.device,
        options.seed,
        update=options.update,
        workers=options.workers,
    )
    crashed = [row for row in rows if row["reason"].startswith("process ended")]
    return int(bool(crashed))


if __name__ == "__main__":
    sys.exit(main())
