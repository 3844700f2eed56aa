"""False alarms and misses in one table: every model, control and planted bug, judged.

    python benchmarks/campaign.py [--dtypes fp32,bf16] [--profile full] [--seed N]
    python benchmarks/campaign.py --match NAME --update

Every correct kernel must pass in each of its dtypes (RANGE where it is excused), and
every planted bug must be red with its own cause named. Writes campaign.csv, a line per
kernel and dtype with the commit it was judged at, and campaign.md; exits 1 if anything
is not as it must be. With --update the lines of other kernels stay as they are.
"""

import argparse
import csv
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

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


def judge(name: str, dtype: str, profile: str, seed: int) -> dict[str, object]:
    """One line of the table."""
    from scancheck import verify
    from scancheck.registry import kernels
    from scancheck.verdict import RED

    kernel = next(k for k in kernels() if k.name == name)
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
        "as_it_must_be": right,
        "cases": sum(record.counts.values()),
        "pass": record.counts.get("PASS", 0),
        "range": record.counts.get("RANGE", 0),
        "red": sum(n for v, n in record.counts.items() if v in RED),
        "worst_ratio": f"{max(ratios, default=0.0):.4g}",
        "worst_rho": f"{max(rhos, default=0.0):.3g}",
        "causes": " ".join(causes),
        "expected_cause": kernel.symptom or "",
        "unseen": "; ".join(record.unseen),
        "seconds": f"{time.monotonic() - started:.1f}",
        "commit": commit(),
        "replay": record.replay,
    }


def commit() -> str:
    """The commit of the checkout, marked where files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def kept_lines(path: Path, jobs: list[tuple[str, str]]) -> list[dict[str, object]]:
    """The lines of an earlier table that none of the jobs replaces."""
    with path.open(newline="") as stream:
        lines: list[dict[str, object]] = list(csv.DictReader(stream))
    for line in lines:
        line["as_it_must_be"] = line["as_it_must_be"] == "True"
    return [one for one in lines if (one["kernel"], one["dtype"]) not in jobs]


def table(rows: list[dict[str, object]], profile: str, seed: int) -> str:
    """The summary as Markdown."""
    from scancheck.environment import describe

    correct = [r for r in rows if r["kind"] == "correct"]
    planted = [r for r in rows if r["kind"] == "planted bug"]
    lines = [
        "# Campaign: correct kernels and planted bugs",
        "",
        f"Profile {profile}, seed {seed}, gradients judged. "
        "Made by `python benchmarks/campaign.py`.",
        "",
        "| | kernel x dtype | cases | as it must be | not |",
        "|---|---|---|---|---|",
    ]
    for name, part in (("correct", correct), ("planted bugs", planted)):
        right = sum(bool(r["as_it_must_be"]) for r in part)
        cases = sum(int(str(r["cases"])) for r in part)
        lines.append(
            f"| {name} | {len(part)} | {cases} | {right} | {len(part) - right} |"
        )
    lines += [
        "",
        "| kernel | dtype | verdict | cases | RANGE | red | worst error / "
        "budget | worst rho | causes named | commit |",
        "|" + "---|" * 10,
    ]
    for r in rows:
        lines.append(
            f"| {r['kernel']} | {r['dtype']} | {r['verdict']} | {r['cases']} | "
            f"{r['range']} | {r['red']} | {r['worst_ratio']} | {r['worst_rho']} | "
            f"{r['causes']} | {r['commit']} |"
        )
    lines += [
        "",
        "Environment: " + ", ".join(f"{k} {v}" for k, v in sorted(describe().items())),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Runs the campaign; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", default="quick", choices=("quick", "full"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--match", default="", help="part of the kernel names")
    parser.add_argument("--dtypes", default="fp32,bf16,fp16,fp64,fp8_e4m3,fp8_e5m2")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--update", action="store_true", help="keep other lines")
    parser.add_argument("-o", "--output", type=Path, default=Path("reports/cpu"))
    options = parser.parse_args()
    from scancheck.kernels.faulty.catalog import controls, faulty
    from scancheck.kernels.models.catalog import models

    jobs = [
        (kernel.name, dtype)
        for kernel in (*models(), *controls(), *faulty())
        for dtype in kernel.dtypes
        if options.match in kernel.name and dtype in options.dtypes.split(",")
    ]
    rows = kept_lines(options.output / "campaign.csv", jobs) if options.update else []
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        waiting = {
            pool.submit(judge, name, dtype, options.profile, options.seed): name
            for name, dtype in jobs
        }
        for done, future in enumerate(as_completed(waiting), 1):
            row = future.result()
            rows.append(row)
            flag = "" if row["as_it_must_be"] else "   <-- not as it must be"
            print(
                f"{done}/{len(jobs)} {row['kernel']} {row['dtype']} {row['verdict']} "
                f"{row['cases']} cases {row['seconds']} s{flag}",
                flush=True,
            )
    rows.sort(key=lambda row: (row["kind"], row["kernel"], row["dtype"]))
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / "campaign.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    text = table(rows, options.profile, options.seed)
    (options.output / "campaign.md").write_text(text)
    wrong = [row for row in rows if not row["as_it_must_be"]]
    cases = sum(int(str(row["cases"])) for row in rows if row["kind"] == "correct")
    print(f"{cases} cases of correct kernels; {len(wrong)} lines not as they must be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
