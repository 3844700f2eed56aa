"""The power of five rules: which planted bugs each catches, which kernels it wrongs.

    python benchmarks/power.py [--dtypes fp32,bf16] [--match NAME] [-o reports/power]

Runs `scancheck verify` over every planted bug and every correct kernel, gradients
included, and applies the other rules to the very tensors that the kernel gave there.
Rows are kept after every kernel; started again, it goes on with those that are missing
(--fresh begins anew, --report only renders). Exits 1 if scancheck misses a bug or
wrongs a kernel.
"""

import argparse
import sys
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from naive_loops import LoopResult, run_loop
from power_report import write_report
from power_rows import About, Row, read_rows, write_rows
from power_rules import RULES, Comparison

from scancheck import verify
from scancheck.bridge import torch_dtype
from scancheck.case import Case
from scancheck.checks.oracle import CaseReport
from scancheck.contract import Contract, resolve
from scancheck.environment import describe
from scancheck.formats import FP32, format_named
from scancheck.kernel import Kernel
from scancheck.kernels.faulty.catalog import controls, faulty
from scancheck.kernels.models.catalog import models
from scancheck.ops import op_named
from scancheck.ops.normal_form import spec_of
from scancheck.recipes.build import build
from scancheck.recipes.inputs import cotangents
from scancheck.runner.returned import dtype_name_of
from scancheck.verdict import RED, Verdict

WITH_ORACLE = ("assert_close", "allclose_1e4", "rms_0005")
CALL = "call"  # what is rejected when a call gives nothing to compare
NO_NUMBERS = ("not_differentiable", "backward_raised")


def kernels() -> tuple[Kernel, ...]:
    """Planted bugs, then the controls of their very cases, then all correct kernels."""
    return (*faulty(), *_controls_of_bugs(), *controls(), *models())


def _controls_of_bugs() -> list[Kernel]:
    """The fault-free control, called as the bugs are: which cases a kernel is judged on
    depends on its op, its chunk and the layouts that it takes.
    """
    by_op = {control.op: control for control in controls()}
    own = {(c.op, c.chunk, c.layouts) for c in controls()}
    ways = {(bug.op, bug.chunk, bug.layouts) for bug in faulty()} - own
    return [
        replace(
            by_op[op],
            name=".".join([by_op[op].name, f"chunk_{chunk}", *layouts]),
            chunk=chunk,
            layouts=layouts,
        )
        for op, chunk, layouts in sorted(ways, key=str)
    ]


def rows_of(kernel: Kernel, dtype: str, profile: str, seed: int) -> list[Row]:
    """A row for each case of `verify`, and for each relation that it found broken."""
    reports: list[CaseReport] = []
    record = verify(
        kernel,
        dtypes=[dtype],
        profile=profile,
        gradients=True,
        seed=seed,
        on_case=lambda done, total, report: reports.append(report),
    ).record
    named = kernel.symptom in [finding.cause for finding in record.findings]
    rows = [case_row(kernel, report, named) for report in reports if _is_judged(report)]
    for finding in record.findings:
        if finding.check.startswith("relation:"):
            rows.append(
                _row(
                    kernel,
                    named,
                    dtype=dtype,
                    recipe=finding.case["recipe"],
                    case_id=finding.case_id,
                    cotangent="",
                    verdict=finding.verdict,
                    relation=finding.check.partition(":")[2],
                    rejected={"scancheck": finding.tensor or CALL},
                )
            )
    return rows


def _is_judged(report: CaseReport) -> bool:
    """False for a call without tokens or rows that failed: no kernel promises it."""
    empty = 0 in dict(report.case.sizes).values()
    return not (empty and report.outcome.problem is not None)


def case_row(kernel: Kernel, report: CaseReport, named: bool) -> Row:
    """One case under all rules."""
    red = report.verdict in RED
    culprits = {
        ("d" if c.check == "gradient" else "") + (c.tensor or CALL)
        for c in report.checks
        if c.verdict in RED
    }
    rejected = {"scancheck": " ".join(sorted(culprits)) if red else ""}
    problem = report.outcome.problem
    failed = problem is not None and (
        not report.outcome.outputs or problem.kind in NO_NUMBERS
    )
    if failed:
        names = [*RULES, *(f"{rule}_oracle" for rule in WITH_ORACLE)]
        rejected |= dict.fromkeys(names, CALL)
    else:
        rejected |= _rejected_by_rules(report)
    return _row(
        kernel,
        named,
        dtype=report.case.dtype,
        recipe=report.case.recipe,
        case_id=report.case.id,
        cotangent=report.cotangent_kind or "",
        verdict=str(Verdict(report.verdict)),
        relation="",
        rejected=rejected,
    )


def _row(
    kernel: Kernel, named: bool, *, dtype: str, rejected: dict[str, str], **rest: str
) -> Row:
    columns = [*RULES, *(f"{rule}_oracle" for rule in WITH_ORACLE)]
    return Row(
        kernel=kernel.name,
        op=kernel.op,
        dtype=dtype,
        bug=kernel.name.rpartition(".")[2] if kernel.symptom else "",
        named=named,
        short=_is_short(kernel, dtype),
        **dict.fromkeys(columns, "") | rejected,
        **rest,
    )


def _is_short(kernel: Kernel, dtype: str) -> bool:
    contract = resolve(kernel.contract or Contract(), dtype)
    formats = [format_named(name) for name in (contract.compute, contract.state)]
    return any(f.unit_roundoff > FP32.unit_roundoff for f in formats)


def _rejected_by_rules(report: CaseReport) -> dict[str, str]:
    """The tensors that each rule rejects, also with the oracle as its reference."""
    found: dict[str, list[str]] = {rule: [] for rule in RULES}
    found |= {f"{rule}_oracle": [] for rule in WITH_ORACLE}
    for name, tensor in comparisons(report).items():
        for rule, accepts in RULES.items():
            if not accepts(tensor):
                found[rule].append(name)
        exact = Comparison(
            got=tensor.got,
            reference=tensor.exact,
            exact=tensor.exact,
            baseline=tensor.baseline,
            dtype=tensor.dtype,
        )
        for rule in WITH_ORACLE:
            if not RULES[rule](exact):
                found[f"{rule}_oracle"].append(name)
    return {rule: " ".join(names) for rule, names in found.items()}


def comparisons(report: CaseReport) -> dict[str, Comparison]:
    """Each output and gradient of a case beside its references."""
    case = report.case
    bars = tuple(sorted(report.cotangents or {}))
    kind = report.cotangent_kind
    wide = torch.float64 if case.dtype == "fp64" else torch.float32
    reference = _loop(case, kind, bars, wide)
    baseline = _loop(case, kind, bars, torch_dtype(case.dtype))
    op = op_named(case.op)
    tensors = {}
    for prefix, got, truth in (
        ("", report.outcome.outputs, report.truth.outputs),
        ("d", report.outcome.gradients, report.truth.gradients),
    ):
        for name, values in got.items():
            told = "gradients" if prefix else "outputs"
            spec = spec_of(op, name, values.ndim)
            tensors[prefix + name] = Comparison(
                got=values,
                reference=getattr(reference, told)[name],
                exact=truth[name].hi,
                baseline=getattr(baseline, told)[name],
                dtype=torch_dtype(dtype_name_of(spec, case.dtype)),
            )
    return tensors


@lru_cache(maxsize=256)
def _loop(
    case: Case, kind: str | None, bars: tuple[str, ...], dtype: torch.dtype
) -> LoopResult:
    """The naive loop of a case, kept for the next kernel with the same cases."""
    inputs = build(case)
    drawn = cotangents(case, kind, case.seed) if kind else {}
    chosen = {name: drawn[name] for name in bars}
    return run_loop(case.op, inputs.tensors, inputs.switches, chosen, dtype)


def _command(options: argparse.Namespace) -> str:
    """What makes these rows again, less what is the default."""
    told = {"profile": "quick", "seed": 0, "match": "", "dtypes": "fp32,bf16"}
    given = {name: getattr(options, name) for name in told}
    changed = [f" --{n} {v}" for n, v in given.items() if v != told[n]]
    return "python benchmarks/power.py" + "".join(changed)


def main() -> int:
    """Runs what is missing, writes rows and report; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", default="quick", choices=("quick", "full"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--match", default="", help="part of the kernels' names")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--fresh", action="store_true", help="forget earlier rows")
    parser.add_argument("--report", action="store_true", help="render, run nothing")
    parser.add_argument("-o", "--output", type=Path, default=Path("reports/power"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "rows.parquet"
    rows: list[Row] = []
    about = About(
        command=_command(options),
        profile=options.profile,
        seed=options.seed,
        environment=describe(),
    )
    if path.exists() and not options.fresh:
        rows, kept = read_rows(path)
        if (kept.profile, kept.seed) != (about.profile, about.seed):
            print(
                f"{path} holds profile {kept.profile}, seed {kept.seed}; ask for the "
                "same, or begin anew with --fresh",
                file=sys.stderr,
            )
            return 2
        about = kept if options.report else about
    done = {(row.kernel, row.dtype) for row in rows}
    jobs = [
        (kernel, dtype)
        for dtype in options.dtypes.split(",")
        for kernel in kernels()
        if options.match in kernel.name
        and dtype in kernel.dtypes
        and (kernel.name, dtype) not in done
        and not options.report
    ]
    for number, (kernel, dtype) in enumerate(jobs, 1):
        started = time.monotonic()
        found = rows_of(kernel, dtype, options.profile, options.seed)
        rows += found
        write_rows(rows, about, path)
        red = sum(bool(row.scancheck) for row in found)
        seconds = time.monotonic() - started
        print(
            f"{number}/{len(jobs)} {kernel.name} {dtype}: {red} of {len(found)} rows "
            f"red, {seconds:.1f} s",
            flush=True,
        )
    return 0 if write_report(rows, about, options.output) else 1


if __name__ == "__main__":
    sys.exit(main())
