"""Faults planted in the sources of the CUDA kernels: when each is red, and its name.

    python benchmarks/cuda_planted.py [--update] [--match NAMES] [-o reports/h200]

Writes planted_sources.md and .csv. Each fault of kernels/faulty/cuda_sources.py is
compiled into its kernel and judged case by case, in the order of `scancheck verify
--gradients`, until a red case is named by the cause that the fault declares; each in a
process of its own, since a fault may lose the device. Needs a CUDA device. Exit code
1: one that is not red, or not named.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

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

from scancheck.kernels.faulty.cuda_sources import (
    FAULTS,
    SourceFault,
    fault_named,
    kernel_of,
    planted,
)

COMMAND = "python benchmarks/cuda_planted.py"
FIELDS = (
    "fault",
    "kernel",
    "kind",
    "file",
    "dtype",
    "verdict",
    "expected_cause",
    "cause",
    "first_red_recipe",
    "first_red_check",
    "cases_until_red",
    "cases_until_named",
    "seconds",
    "commit",
)
SHOWN = ("fault", "kernel", "kind", "verdict", "cause", "first red", "cases", "named")


def name_of(fault: SourceFault) -> str:
    """Unique among all faults."""
    return f"{fault.kernel.split('.')[1]}.{fault.name}"


def judged(op: str, name: str, seed: int) -> Row:
    """The row of one fault, by the first CUDA device."""
    from planted_bugs import judge

    fault = fault_named(op, name)
    row = dict.fromkeys(FIELDS, "")
    with planted(fault):
        kernel = replace(kernel_of(fault), devices=("cuda:0",))
        found = judge(kernel, fault.dtype, "quick", seed)
    row |= {field: found[field] for field in FIELDS if field in found}
    row |= {"fault": name_of(fault), "kernel": fault.kernel}
    return row | {"kind": fault.kind, "file": fault.file}


def rows(faults: Iterable[SourceFault], seed: int) -> Iterator[Row]:
    """As they come, from as many processes as the cores can feed.

    One of each op goes first: the oracles that it compiles are there for the others.
    """
    left = {name_of(fault): fault for fault in faults}
    first = list(
        {fault.kernel.split(".")[1]: fault for fault in left.values()}.values()
    )
    for fault in first:
        del left[name_of(fault)]
    workers = max(1, min(12, (os.cpu_count() or 2) - 2))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        workers, mp_context=spawn, max_tasks_per_child=1
    ) as executor:
        for group in (first, left.values()):
            asked = {
                executor.submit(
                    judged, fault.kernel.split(".")[1], fault.name, seed
                ): fault
                for fault in group
            }
            for future in as_completed(asked):
                yield row_of(asked[future], future)


def row_of(fault: SourceFault, future: "Future[Row]") -> Row:
    """What came of a process, also of one that was lost."""
    try:
        return future.result()
    except Exception as error:
        row = dict.fromkeys(FIELDS, "") | {"kind": fault.kind, "file": fault.file}
        row |= {"fault": name_of(fault), "kernel": fault.kernel, "commit": commit()}
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        return row | {"verdict": "not judged", "cause": told}


def as_it_must_be(row: Row) -> bool:
    """Red, and named by its cause."""
    return bool(row["cases_until_red"] and row["cases_until_named"])


def page(found: list[Row]) -> str:
    """The rows as Markdown."""
    red = sum(bool(row["cases_until_red"]) for row in found)
    named = sum(map(as_it_must_be, found))
    body = [
        (
            row["fault"],
            row["kernel"],
            row["kind"],
            row["verdict"],
            row["cause"] or "-",
            f"{row['first_red_check']} of {row['first_red_recipe']}",
            row["cases_until_red"] or "-",
            "yes" if as_it_must_be(row) else f"**no**, {row['expected_cause']}",
        )
        for row in found
    ]
    commits = ", ".join(sorted({row["commit"] for row in found}))
    return (
        "# Faults planted in the CUDA sources\n\n"
        f"{len(found)} faults, each a replacement of text in kernels/cuda/sources: "
        f"{red} red, {named} named by their cause. Cases: judged until the first red "
        f"one, of the quick profile. Commit {commits}. Made by `{COMMAND}`.\n\n"
        + table(SHOWN, body)
        + f"\n{environment()}\n"
    )


def run(
    faults: list[SourceFault],
    folder: Path,
    kept: list[Row],
    judge_all: Callable[[], Iterable[Row]],
) -> int:
    """Writes page and rows after each fault; 1 where one is not as it must be."""
    order = [name_of(fault) for fault in FAULTS]
    found = {row["fault"]: row for row in kept}
    for row in judge_all():
        found[row["fault"]] = row
        print(row["fault"], row["verdict"], row["cause"], flush=True)
        done = sorted(found.values(), key=lambda row: order.index(row["fault"]))
        write_rows(done, FIELDS, folder / "planted_sources.csv")
        (folder / "planted_sources.md").write_text(page(done), encoding="utf-8")
    wanted = [found.get(name_of(fault)) for fault in faults]
    return int(not all(row is not None and as_it_must_be(row) for row in wanted))


def main() -> int:
    """Judges those faults that are asked for, or with --update not yet as they must."""
    options = options_of(__doc__, "reports/h200").parse_args()
    faults = [fault for fault in FAULTS if chosen(name_of(fault), options.match)]
    kept: list[Row] = []
    if options.update:
        known = {name_of(fault) for fault in FAULTS}
        read = read_rows(options.output / "planted_sources.csv")
        kept = [row for row in read if row["fault"] in known]
    settled = {row["fault"] for row in kept if as_it_must_be(row)}
    left = [fault for fault in faults if name_of(fault) not in settled]
    return run(faults, options.output, kept, lambda: rows(left, options.seed))


if __name__ == "__main__":
    sys.exit(main())
