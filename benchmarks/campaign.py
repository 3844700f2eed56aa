"""False alarms and misses in one table: every model, control and planted bug, judged.

    python benchmarks/campaign.py [--dtypes fp32,bf16] [--profile full] [--seed N]
    python benchmarks/campaign.py --match NAME --update
    python benchmarks/campaign.py --until-named

Every correct kernel must pass in each of its dtypes (RANGE where it is excused), and
every planted bug must be red with its own cause named. Writes campaign.csv, a line per
kernel and dtype with the commit it was judged at, and campaign.md; exits 1 if anything
is not as it must be. With --update the lines of other kernels stay as they are.

With --until-named only planted bugs are judged, each no further than to the case that
names it, which goes into planted_bugs.csv and planted_bugs.md.
"""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TYPE_CHECKING, NamedTuple

import planted_bugs
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

if TYPE_CHECKING:
    from scancheck.kernel import Kernel

FIELDS = (
    "kernel",
    "dtype",
    "kind",
    "verdict",
    "as_it_must_be",
    "cases",
    "pass",
    "range",
    "red",
    "worst_ratio",
    "worst_rho",
    "causes",
    "expected_cause",
    "unseen",
    "seconds",
    "commit",
    "replay",
)
DTYPES = "fp32,bf16,fp16,fp64,fp8_e4m3,fp8_e5m2"


def judge(name: str, dtype: str, profile: str, seed: int) -> Row:
    """One line of the table."""
    from scancheck import verify
    from scancheck.registry import resolve_target
    from scancheck.verdict import RED

    (kernel,) = resolve_target(name, None)
    started = time.monotonic()
    record = verify(
        name, dtypes=[dtype], profile=profile, gradients=True, seed=seed
    ).record
    causes = sorted({finding.cause for finding in record.findings})
    planted = kernel.symptom is not None
    right = kernel.symptom in causes if planted else record.exit_code == 0
    ratios = [r for r in record.worst_ratio.values() if r is not None]
    rhos = [r for r in record.worst_rho.values() if r is not None]
    return {
        "kernel": name,
        "dtype": dtype,
        "kind": "planted bug" if planted else "correct",
        "verdict": record.verdict,
        "as_it_must_be": str(right),
        "cases": str(sum(record.counts.values())),
        "pass": str(record.counts.get("PASS", 0)),
        "range": str(record.counts.get("RANGE", 0)),
        "red": str(sum(n for v, n in record.counts.items() if v in RED)),
        "worst_ratio": f"{max(ratios, default=0.0):.4g}",
        "worst_rho": f"{max(rhos, default=0.0):.3g}",
        "causes": " ".join(causes),
        "expected_cause": kernel.symptom or "",
        "unseen": "; ".join(record.unseen),
        "seconds": f"{time.monotonic() - started:.1f}",
        "commit": commit(),
        "replay": record.replay,
    }


def as_it_must_be(row: Row) -> bool:
    """Whether a correct kernel passed, or a planted bug was named."""
    return row["as_it_must_be"] == "True"


def page(rows: list[Row], profile: str, seed: int) -> str:
    """The summary and the rows as Markdown."""
    summary = []
    for kind, name in (("correct", "correct"), ("planted bug", "planted bugs")):
        part = [row for row in rows if row["kind"] == kind]
        right = sum(map(as_it_must_be, part))
        cases = sum(int(row["cases"]) for row in part)
        counts = (len(part), cases, right, len(part) - right)
        summary.append([name, *map(str, counts)])
    heads = {
        "kernel": "kernel",
        "dtype": "dtype",
        "verdict": "verdict",
        "cases": "cases",
        "range": "RANGE",
        "red": "red",
        "worst_ratio": "worst error / budget",
        "worst_rho": "worst rho",
        "causes": "causes named",
        "commit": "commit",
    }
    return (
        "# Campaign: correct kernels and planted bugs\n\n"
        f"Profile {profile}, seed {seed}, gradients judged. "
        "Made by `python benchmarks/campaign.py`.\n\n"
        + table(["", "kernel x dtype", "cases", "as it must be", "not"], summary)
        + "\n"
        + table(list(heads.values()), [[row[name] for name in heads] for row in rows])
        + f"\n{environment()}\n"
    )


class Mode(NamedTuple):
    """What is judged how, and where it is told."""

    name: str  # of its files
    fields: tuple[str, ...]
    judge: Callable[[str, str, str, int], Row]
    as_it_must_be: Callable[[Row], bool]
    page: Callable[[list[Row], str, int], str]


WHOLE = Mode("campaign", FIELDS, judge, as_it_must_be, page)
UNTIL_NAMED = Mode(
    "planted_bugs",
    planted_bugs.FIELDS,
    planted_bugs.judge,
    planted_bugs.as_it_must_be,
    planted_bugs.page,
)


def built_in() -> "tuple[Kernel, ...]":
    """Every kernel that comes with the package and runs on a CPU."""
    from scancheck.adapters.catalog import adapters
    from scancheck.registry import kernels

    others = {kernel.name for kernel in adapters()}
    return tuple(
        kernel
        for kernel in kernels()
        if kernel.name not in others and "cpu" in kernel.devices
    )


def main() -> int:
    """Runs the campaign; the exit code."""
    parser = options_of(__doc__, "reports/cpu")
    parser.add_argument("--profile", default="quick", choices=("quick", "full"))
    parser.add_argument("--dtypes", default=DTYPES)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--until-named", action="store_true", help="bugs, until named")
    options = parser.parse_args()
    mode = UNTIL_NAMED if options.until_named else WHOLE
    jobs = [
        (kernel.name, dtype)
        for kernel in built_in()
        for dtype in kernel.dtypes
        if chosen(kernel.name, options.match) and dtype in options.dtypes.split(",")
        if kernel.symptom is not None or not options.until_named
    ]
    path = options.output / f"{mode.name}.csv"
    kept = read_rows(path) if options.update else []
    old = dict.fromkeys(mode.fields, "")
    rows = [old | r for r in kept if (r["kernel"], r["dtype"]) not in jobs]

    def write() -> None:
        rows.sort(key=lambda row: (row.get("kind", ""), row["kernel"], row["dtype"]))
        write_rows(rows, mode.fields, path)
        text = mode.page(rows, options.profile, options.seed)
        path.with_suffix(".md").write_text(text)

    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        waiting = [
            pool.submit(mode.judge, name, dtype, options.profile, options.seed)
            for name, dtype in jobs
        ]
        for done, future in enumerate(as_completed(waiting), 1):
            row = future.result()
            rows.append(row)
            flag = "" if mode.as_it_must_be(row) else "   <-- not as it must be"
            told = f"{row['kernel']} {row['dtype']} {row['verdict']} {row['seconds']} s"
            print(f"{done}/{len(jobs)} {told}{flag}", flush=True)
            if options.update:
                write()  # another run goes on from here
    write()
    wrong = sum(not mode.as_it_must_be(row) for row in rows)
    print(f"{len(rows)} kernels x dtypes; {wrong} not as they must be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
