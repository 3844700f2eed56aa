"""The loop over cases, and what it has seen."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field

from scancheck.case import Case
from scancheck.checks.influence import parts_of, seen_parts
from scancheck.checks.judging_device import judging_device
from scancheck.checks.oracle import CaseReport, Request
from scancheck.checks.relations import relation_reports
from scancheck.contract import Contract, format_contract
from scancheck.environment import describe
from scancheck.errors import CaseInvalid
from scancheck.gate.ahead import case_reports
from scancheck.gate.findings import findings_of, unmet
from scancheck.kernel import Kernel
from scancheck.ops import op_named
from scancheck.ops.calling import ARGUMENTS, op_of
from scancheck.ops.normal_form import Op, state_outputs
from scancheck.recipes.build import build
from scancheck.recipes.case_list import case_list
from scancheck.recipes.inputs import COTANGENT_KINDS, case_sizes, within_limits
from scancheck.recipes.op_rules import chains_of
from scancheck.recipes.taken_sizes import taken_sizes
from scancheck.record import Finding, RunRecord, finite_or_none
from scancheck.red_check import RedCheck
from scancheck.runner import accepted_parameters, execute, required_parameters
from scancheck.runner.process import CASE_LIMIT_S
from scancheck.verdict import (
    EXIT_HARNESS,
    RED,
    Verdict,
    exit_code,
    run_label,
    worst_verdict,
)

Progress = Callable[[int, int, CaseReport], None]

# What may come of a call without tokens that the kernel does not promise; an empty
# output that needs no graph is no failure to differentiate either.
RAISED = ("raised", "backward_raised", "not_differentiable", "device_error")
LAYOUTS = ("keys=grouped", "keys=constant")  # what a signature cannot show
FALSE_ALARM_RATE = 1e-6  # p of semantics.md, per run


@dataclass(slots=True)
class Tally:
    """What a run has seen so far."""

    counts: dict[str, int] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    red: list[RedCheck] = field(default_factory=list)
    vacuous: int = 0
    elements: int = 0
    ratios: dict[str, float] = field(default_factory=dict)
    rhos: dict[str, float] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    not_judged: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    uncertified: list[str] = field(default_factory=list)
    why_on_cpu: list[str] = field(default_factory=list)  # judged there, not on CUDA


class Judging:
    """One request on its way to a record."""

    def __init__(
        self,
        *,
        kernel: Kernel,
        contract: Contract,
        declared: bool,
        profile: str,
        gradients: bool,
        require: frozenset[str],
        seed: int,
        dtypes: tuple[str, ...],
        case_limit_s: float = CASE_LIMIT_S,
    ) -> None:
        self.kernel, self.contract = kernel, contract
        self.case_limit_s = case_limit_s  # whoever runs the kernel keeps to it
        self.op = op_named(kernel.op)
        self.declared, self.profile, self.gradients = declared, profile, gradients
        self.require, self.seed, self.dtypes = require, seed, dtypes
        self.tally = Tally()
        self.device, why_on_cpu = judging_device(kernel)
        if why_on_cpu is not None:
            self.tally.why_on_cpu.append(why_on_cpu)
        self.accepted = accepted_parameters(kernel, self.op)
        self.returned: tuple[str, ...] = ()
        self.whole = True  # all cases were judged, not one that is replayed
        self.unmet: list[tuple[str, str]] = []  # what --require names, and why not
        self._check_require()
        self._check_domain()
        self.taken = taken_sizes(kernel, self.op, contract, gradients=gradients)
        self.tally.not_judged += self.taken.left_out(dtypes)

    def _check_domain(self) -> None:
        names = [spec.name for spec in self.op.inputs]
        for name, _, _ in self.contract.domain:
            if name not in names:
                raise CaseInvalid(
                    f"contract domain: expected an input of {self.op.name} "
                    f"({', '.join(names)}); got {name}"
                )

    def _check_require(self) -> None:
        names = {s.name for s in self.op.inputs + self.op.outputs}
        known = names | set(self.op.switches) | {*LAYOUTS, *ARGUMENTS, "empty", "range"}
        unknown = sorted(self.require - known)
        if unknown:
            raise CaseInvalid(
                f"--require {unknown[0]}: expected an input or output of "
                f"{self.op.name} ({', '.join(sorted(names))}), "
                f"{', '.join((*ARGUMENTS, *LAYOUTS))}, empty or range"
            )

    def judge(self, case_id: str | None, on_case: Progress | None) -> None:
        """Every case of every dtype, then the relations."""
        plans = {dtype: self.cases(dtype) for dtype in self.dtypes}
        for dtype, cases in plans.items():
            self._probe(dtype, cases)
        # A case keeps its number, which chooses its cotangents, when it is replayed.
        numbered = {d: list(enumerate(cases)) for d, cases in plans.items()}
        if case_id is not None:
            numbered = {
                d: [(i, c) for i, c in pairs if c.id == case_id]
                for d, pairs in numbered.items()
            }
            if not any(numbered.values()):
                raise CaseInvalid(
                    f"--case {case_id}: no such case in this run; target, dtype, "
                    "profile and seed must be those of the run that printed it"
                )
        total = sum(len(cases) for cases in numbered.values())
        elements = sum(_size(self.op, c) for cases in plans.values() for c in cases)
        done = 0
        for chosen in numbered.values():
            request = Request(
                contract=self.contract,
                gradients=self.gradients,
                elements=max(1, elements),
                p=FALSE_ALARM_RATE,
                not_judged=frozenset(
                    s.name for s in self.op.outputs if s.name not in self.returned
                ),
                device=self.device,
            )
            asked = [(case, self._cotangents(index)) for index, case in chosen]
            for report in case_reports(self.kernel, asked, request):
                self._take(report, request)
                done += 1
                if on_case is not None:
                    on_case(done, total, report)
                if self._is_over(report):
                    self._tell_loss(total - done)
                    return
            self._relations([case for _, case in chosen], request)
        self.whole = case_id is None
        self._required()

    def _is_over(self, report: CaseReport) -> bool:
        """Whether this process has lost the device that the kernel runs on."""
        return report.outcome.device_lost and self.kernel.elsewhere is None

    def _tell_loss(self, left: int) -> None:
        self.whole = False
        self.tally.not_judged.append(
            f"{left} cases: {self.kernel.devices[0]} was lost; a kernel that is named "
            "as package.module:callable or path/file.py:callable runs in a process of "
            "its own"
        )

    def cases(self, dtype: str) -> list[Case]:
        """The plan of one dtype; inputs without a default are always passed.

        Cases outside the limits that the contract documents are not judged.
        """
        layouts = {name for name in self.require if name in LAYOUTS}
        cases = case_list(
            self.op.name,
            dtype,
            accepts=self.accepted | layouts | set(self.kernel.layouts),
            requires=required_parameters(self.kernel, self.accepted),
            profile=self.profile,
            seed=self.seed,
            chunk=self.kernel.chunk or self.contract.structure.chunk,
            empty=True,
            taken=self.taken,
        )
        limits = self.contract.domain
        inside = (
            [c for c in cases if within_limits(build(c), limits)] if limits else cases
        )
        if len(inside) < len(cases):
            outside = len(cases) - len(inside)
            self.tally.not_judged.append(
                f"{outside} of {len(cases)} {dtype} cases: outside the domain of the "
                "contract"
            )
        return self._within_length(inside, dtype)

    def _within_length(self, cases: list[Case], dtype: str) -> list[Case]:
        """The cases without those too long for a kernel that is run slowly."""
        longest, axis = self.kernel.longest, self.op.time_axis
        if longest is None:
            return cases
        short = [case for case in cases if dict(case.sizes)[axis] <= longest]
        if len(short) < len(cases):
            self.tally.not_judged.append(
                f"{len(cases) - len(short)} of {len(cases)} {dtype} cases: longer than "
                f"{longest} tokens"
            )
        return short

    def _probe(self, dtype: str, cases: list[Case]) -> None:
        """Which outputs the kernel returns, from its first case that runs."""
        for case in cases[:3]:
            outcome = execute(self.kernel, op_of(case), build(case), dtype, runs=1)
            if outcome.returned:
                self.returned = outcome.returned
                return

    def _cotangents(self, index: int) -> str | None:
        """The kind of cotangents of the case with this number."""
        if not self.gradients:
            return None
        finals = {spec.name for spec in state_outputs(self.op)}
        kinds = [
            k
            for k in COTANGENT_KINDS
            if k != "final_state" or finals & {*self.returned}
        ]
        return kinds[index % len(kinds)]

    def _take(self, report: CaseReport, request: Request) -> None:
        """Counts a report, unless it is of a case that the kernel does not promise."""
        case, problem = report.case, report.outcome.problem
        raised = problem is not None and problem.kind in RAISED
        if is_empty(self.op, case) and raised and not report.outcome.device_lost:
            promised = self.kernel.edge_sizes or "empty" in self.require
            if not promised:
                sizes = dict(case.sizes)
                note = f"empty ({self.op.time_axis}={sizes[self.op.time_axis]}"
                note += f", B={sizes['B']}): the kernel raises"
                if note not in self.tally.not_judged:
                    self.tally.not_judged.append(note)
                return
        self._count(report, request)

    def _count(self, report: CaseReport, request: Request) -> None:
        tally = self.tally
        verdict = report.verdict
        tally.verdicts.append(verdict)
        if report.why_on_cpu not in (None, *tally.why_on_cpu):
            tally.why_on_cpu.append(str(report.why_on_cpu))
        tally.counts[verdict] = tally.counts.get(verdict, 0) + 1
        for check in report.checks:
            if check.verdict in RED:
                tally.red.append(
                    RedCheck(
                        kernel=self.kernel,
                        report=report,
                        check=check,
                        request=request,
                    )
                )
            if check.rho is not None and check.tensor is not None:
                old = tally.rhos.get(check.tensor, 0.0)
                tally.rhos[check.tensor] = max(old, check.rho)
        if verdict is Verdict.RANGE:
            tally.ranges.append(f"{report.case.id}: {_reason(report, verdict)}")
        if verdict is Verdict.UNCERTIFIED:
            tally.uncertified.append(report.case.id)
        for prefix, found in (("", report.metrics), ("d", report.gradient_metrics)):
            for name, metrics in found.items():
                tally.elements += metrics.ratio.size
                tally.vacuous += int((metrics.vacuous & ~metrics.wrong).sum())
                if metrics.ratio.size:
                    old = tally.ratios.get(prefix + name, 0.0)
                    worst = float(metrics.ratio.max())
                    tally.ratios[prefix + name] = max(old, worst)
        if verdict in (Verdict.PASS, Verdict.RANGE):
            unseen = [p for p in self._parts() if p not in tally.seen]
            tally.seen |= seen_parts(report, unseen)

    def _parts(self) -> tuple[str, ...]:
        return parts_of(self.op, self.accepted, self.returned, self.gradients)

    def _relations(self, cases: list[Case], request: Request) -> None:
        for report in relation_reports(
            self.kernel, self.op, cases, request, self.accepted, self.returned
        ):
            self._count(report, request)

    def _required(self) -> None:
        """Inputs and outputs that are not judged; red where they were demanded."""
        switches = set(self.op.switches)
        names = {s.name for s in self.op.inputs} | switches
        forms = {name for form in self.op.forms for name in form}
        # One form is enough; another counts where it is demanded.
        lacking = sorted(names - self.accepted - (forms - self.require))
        lacking += sorted((self.require & set(ARGUMENTS)) - self.accepted)
        lacking = [f"input {n}: not a parameter of the kernel" for n in lacking]
        if self.returned:
            lacking += [
                f"output {s.name}: not returned by the kernel"
                for s in self.op.outputs
                if s.name not in self.returned
            ]
        for note in lacking:
            if note not in self.tally.not_judged:
                self.tally.not_judged.append(note)
        for note in lacking:
            name = note.split()[1].rstrip(":")
            if name in self.require:
                self.unmet.append((name, note))
                self.tally.verdicts.append(Verdict.ERROR)
                self.tally.counts[Verdict.ERROR] = (
                    self.tally.counts.get(Verdict.ERROR, 0) + 1
                )

    def record(self, seconds: float, *, interrupted: bool) -> RunRecord:
        """The whole run as data."""
        tally = self.tally
        parts = self._parts() if self.returned and self.whole else ()
        unseen = tuple(p for p in parts if p not in tally.seen)
        worst = worst_verdict(tally.verdicts)
        code = exit_code(tally.verdicts, blind=bool(unseen), require=set(self.require))
        label = run_label(worst, code, bool(unseen), bool(tally.verdicts))
        if interrupted:
            label, code = "INTERRUPTED", EXIT_HARNESS
        replay = self._command()
        return RunRecord(
            verdict=label,
            exit_code=code,
            target=self.kernel.name,
            op=self.op.name,
            dtype=",".join(self.dtypes),
            profile=self.profile,
            seed=self.seed,
            p=FALSE_ALARM_RATE,
            contract=format_contract(self.contract),
            contract_declared=self.declared,
            gradients=self.gradients,
            counts={v: tally.counts[v] for v in sorted(tally.counts)},
            vacuous=tally.vacuous,
            elements=tally.elements,
            worst_ratio={n: finite_or_none(r) for n, r in sorted(tally.ratios.items())},
            worst_rho={n: finite_or_none(r) for n, r in sorted(tally.rhos.items())},
            seen=tuple(p for p in parts if p in tally.seen),
            unseen=unseen,
            not_judged=tuple(tally.not_judged),
            environment=describe(),
            duration_s=round(seconds, 3),
            replay=replay,
            range_cases=tuple(tally.ranges),
            uncertified_cases=tuple(tally.uncertified),
            judged_on_cpu=tuple(tally.why_on_cpu),
            findings=() if interrupted else self._findings(replay),
        )

    def _findings(self, replay: str) -> tuple[Finding, ...]:
        """What was demanded and could not be judged, then what failed."""
        demands = [unmet(self.op, name, note, replay) for name, note in self.unmet]
        return (*demands, *findings_of(self.op, self.tally.red, replay))

    def _command(self) -> str:
        parts = ["scancheck", "verify", self.kernel.name, "--op", self.op.name]
        parts += ["--dtype", ",".join(self.dtypes), "--profile", self.profile]
        if self.declared and self.contract != (self.kernel.contract or Contract()):
            parts += ["--contract", format_contract(self.contract)]
        if self.gradients:
            parts.append("--gradients")
        if (device := self.kernel.devices[0]) != "cpu":
            parts += ["--device", device]
        if self.case_limit_s != CASE_LIMIT_S:
            parts += ["--case-time", f"{self.case_limit_s:g}s"]
        for name in sorted(self.require):
            parts += ["--require", name]
        parts += ["--seed", str(self.seed)]
        return shlex.join(parts)


def is_empty(op: Op, case: Case) -> bool:
    """Whether the case has no token or no batch row."""
    sizes = dict(case.sizes)
    return sizes[op.time_axis] == 0 or sizes["B"] == 0


def _size(op: Op, case: Case) -> int:
    sizes = case_sizes(case)
    _, keys, _ = op.group_shape(sizes)
    return chains_of(op, sizes) * (sizes[op.time_axis] + keys)


def _reason(report: CaseReport, verdict: Verdict) -> str:
    return next(c.reason for c in report.checks if c.verdict is verdict)
