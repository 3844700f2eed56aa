"""Bits of the reproducible CUDA kernels beside those of their CPU models.

    python benchmarks/cuda_bits.py [--update] [--match NAMES] [-o reports/h200]

Writes bit_equality.md and .csv: for every reproducible kernel and storage format, each
output and each gradient, how many values were compared on the cases of cuda_cases.py
and how many differ from the model, in three runs. Rows that an earlier run has written
are kept with --update, so that it goes on. Needs a CUDA device. Exit code 1: bits that
differ, whose first place is told.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cuda_cases import DTYPES, Case, Drawn, cases_of, drawn
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

COMMAND = "python benchmarks/cuda_bits.py"
FIELDS = (
    "kernel",
    "dtype",
    "tensor",
    "cases",
    "values",
    "differing",
    "first",
    "runs_differing",
    "subnormal",
    "not_finite",
    "seconds",
    "commit",
)
RUNS = 3
Run = Callable[[str, Drawn], dict[str, Any]]
"""Outputs, and gradients as `d NAME`, of a kernel on what was drawn."""


@dataclass(slots=True)
class Count:
    """Of one tensor over all cases."""

    cases: int = 0
    values: int = 0
    differing: int = 0  # from the model
    first: str = ""  # where, and in which case
    runs_differing: int = 0  # values that differ between runs
    subnormal: int = 0  # of the model's, below the smallest normal fp32 or fp16
    not_finite: int = 0


def on_device(name: str, given: Drawn) -> dict[str, Any]:
    """What the registered kernel gives, through its public call and autograd."""
    import torch

    from scancheck.kernels.cuda.catalog import kernels
    from scancheck.ops import op_named

    (kernel,) = (k for k in kernels() if k.name == name)
    # Detached views keep the strides.
    leaves = {k: x.detach().requires_grad_() for k, x in given.tensors.items()}
    outputs = kernel.call(**leaves, **given.switches)
    found = torch.autograd.grad(outputs, list(leaves.values()), given.cotangents)
    results = {
        spec.name: x.detach()
        for spec, x in zip(op_named(kernel.op).outputs, outputs, strict=True)
    }
    return results | {f"d {k}": x for k, x in zip(leaves, found, strict=True)}


def of_model(name: str, given: Drawn, device: str) -> dict[str, Any]:
    """What the kernel's model gives for a call on that device."""
    import torch

    from scancheck.kernels.models.of_cuda_kernels import Device, results

    as_there = Device()
    if device != "cpu":
        # Stubs of torch lack some of the properties.
        has: Any = torch.cuda.get_device_properties(device)
        as_there = Device(
            shared=has.shared_memory_per_block_optin,
            multiprocessors=has.multi_processor_count,
        )
    found = results(
        name, given.tensors, given.cotangents, **given.switches, device=as_there
    )
    return found.tensors()


def compared(
    name: str, dtype: str, cases: Iterable[Case], run: Run, device: str
) -> dict[str, Count]:
    """Counts by tensor, of `run` on `device` beside the model."""
    import torch

    from scancheck.kernels.models.of_cuda_kernels import different

    counts: dict[str, Count] = {}
    for case in cases:
        expected = of_model(name, drawn(name, case, dtype), device)
        given = drawn(name, case, dtype, device)
        runs = [run(name, given) for _ in range(RUNS)]
        if runs[0].keys() != expected.keys():
            raise ValueError(f"expected {list(expected)}; got {list(runs[0])}")
        for tensor, want in expected.items():
            count = counts.setdefault(tensor, Count())
            wrong = different(runs[0][tensor], want)
            again = torch.zeros_like(wrong)
            for other in runs[1:]:
                again |= different(other[tensor], runs[0][tensor])
            count.cases += 1
            count.values += want.numel()
            count.differing += int(wrong.sum())
            count.runs_differing += int(again.sum())
            count.not_finite += int((~want.isfinite()).sum())
            tiny = torch.finfo(want.dtype).tiny
            count.subnormal += int(((want.abs() < tiny) & (want != 0)).sum())
            if bool((wrong | again).any()) and not count.first:
                place = tuple((wrong | again).nonzero()[0].tolist())
                count.first = f"{place} of {case.label}"
    return counts


def rows_of(name: str, dtype: str) -> list[Row]:
    """The rows of one kernel and format, by the current CUDA device."""
    import time

    started = time.monotonic()
    counts = compared(name, dtype, cases_of(name), on_device, "cuda")
    common = {"kernel": name, "dtype": dtype, "commit": commit()}
    common["seconds"] = f"{time.monotonic() - started:.1f}"
    return [
        common | {"tensor": tensor} | {k: str(x) for k, x in asdict(count).items()}
        for tensor, count in counts.items()
    ]


def names() -> list[str]:
    """Every CUDA kernel that has a model; the slowest to compile first."""
    from scancheck.kernels.cuda.catalog import kernels
    from scancheck.kernels.models.of_cuda_kernels import is_reproducible

    found = [k.name for k in kernels() if is_reproducible(k.name)]
    return sorted(found, key=lambda name: "linear_scan" in name)


def compiled_apart(names: Iterable[str]) -> list[str]:
    """One kernel for each compilation of the models' loops."""
    found: dict[tuple[str, bool, bool], str] = {}
    for name in names:
        _, op, order, variant, *_ = name.split(".")
        found.setdefault((op, order == "time", variant == "tabulated"), name)
    return list(found.values())


def compile_model(name: str) -> None:
    """Leaves the loops of a model in the cache on disk, for all processes."""
    of_model(name, drawn(name, next(cases_of(name)), "fp32"), "cpu")


def judged(asked: list[tuple[str, str]]) -> Iterator[list[Row]]:
    """As they come, each worker a process with the device and one core."""
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    workers = max(1, min(os.cpu_count() or 1, len(asked)))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn) as executor:
        list(executor.map(compile_model, compiled_apart(name for name, _ in asked)))
        futures = [executor.submit(rows_of, *pair) for pair in asked]
        for future in as_completed(futures):
            yield future.result()


def as_it_must_be(row: Row) -> bool:
    """Whether values were compared and none differ."""
    wrong = int(row["differing"]) + int(row["runs_differing"])
    return wrong == 0 and int(row["values"]) > 0


def page(rows: list[Row]) -> str:
    """The rows as Markdown, tensors of one kernel and format together."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["kernel"], row["dtype"]), []).append(row)

    def total(part: Iterable[Row], field: str) -> int:
        return sum(int(row[field]) for row in part)

    body = []
    for (kernel, dtype), part in groups.items():
        outputs = [row for row in part if not row["tensor"].startswith("d ")]
        gradients = [row for row in part if row["tensor"].startswith("d ")]
        body.append(
            (
                kernel,
                dtype,
                part[0]["cases"],
                str(total(outputs, "values")),
                str(total(outputs, "differing")),
                str(total(gradients, "values")),
                str(total(gradients, "differing")),
                str(total(part, "runs_differing")),
                str(total(part, "subnormal")),
                str(total(part, "not_finite")),
            )
        )
    wrong = [row for row in rows if not as_it_must_be(row)]
    told = "".join(
        f"- **{row['kernel']} {row['dtype']} {row['tensor']}**: {row['first']}\n"
        for row in wrong
    )
    commits = ", ".join(sorted({row["commit"] for row in rows}))
    return (
        "# Bits of the reproducible CUDA kernels beside their CPU models\n\n"
        f"{total(rows, 'values')} values of {len(rows)} tensors compared: "
        f"{total(rows, 'differing')} differ from the model, "
        f"{total(rows, 'runs_differing')} between {RUNS} runs. A NaN equals any other. "
        "Differing means other bits in the first run; subnormal and not finite are the "
        f"model's values. Commit {commits}. Made by `{COMMAND}`.\n\n"
        "The models of tabulated kernels take the hardware's ex2 from its table, which "
        "cuda_functions.md compares with the device on all 2^32 inputs.\n\n"
        + (f"{told}\n" if told else "")
        + table(
            (
                "kernel",
                "dtype",
                "cases",
                "outputs",
                "differing",
                "gradients",
                "differing",
                "between runs",
                "subnormal",
                "not finite",
            ),
            body,
        )
        + f"\n{environment()}\n"
    )


def run(
    asked: list[tuple[str, str]],
    folder: Path,
    kept: list[Row],
    judge_all: Callable[[], Iterable[list[Row]]],
) -> int:
    """Writes page and rows as they come; 1 where one is not as it must be."""
    rows = list(kept)
    for new in judge_all():
        rows += new
        print(
            *(new[0][k] for k in ("kernel", "dtype", "seconds")),
            f"{sum(int(row['values']) for row in new)} values,",
            f"{sum(not as_it_must_be(row) for row in new)} tensors differ",
            flush=True,
        )
        rows.sort(key=lambda row: (row["kernel"], row["dtype"]))
        write_rows(rows, FIELDS, folder / "bit_equality.csv")
        (folder / "bit_equality.md").write_text(page(rows), encoding="utf-8")
    mine = [row for row in rows if (row["kernel"], row["dtype"]) in asked]
    for row in mine:
        if not as_it_must_be(row):
            print(row["kernel"], row["dtype"], row["tensor"], row["first"], flush=True)
    missing = set(asked) - {(row["kernel"], row["dtype"]) for row in mine}
    return int(bool(missing) or not all(map(as_it_must_be, mine)))


def main() -> int:
    """Compares those kernels that are asked for, or with --update those left."""
    options = options_of(__doc__, "reports/h200").parse_args()
    asked = [
        (name, dtype)
        for name in names()
        for dtype in DTYPES
        if chosen(name, options.match)
    ]
    kept = read_rows(options.output / "bit_equality.csv") if options.update else []
    good: dict[tuple[str, str], bool] = {}
    for row in kept:
        key = row["kernel"], row["dtype"]
        good[key] = good.get(key, True) and as_it_must_be(row)
    kept = [row for row in kept if good[row["kernel"], row["dtype"]]]
    left = [pair for pair in asked if not good.get(pair)]
    return run(asked, options.output, kept, lambda: judged(left))


if __name__ == "__main__":
    sys.exit(main())
