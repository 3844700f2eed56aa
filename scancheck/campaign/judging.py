"""One trial through the chain: its verdict, why it is red, and its finding.

Nothing is compared here: verdicts and causes are those of scancheck.checks.
"""

import re
from collections.abc import Iterable

from scancheck.campaign.trial import (
    ELEMENTS,
    FALSE_ALARM_RATE,
    Detail,
    Failure,
    Judged,
    Trial,
)
from scancheck.checks.experiments import (
    diagnose,
    likely_cause,
    passing_contracts,
    red_checks,
)
from scancheck.checks.influence import parts_of, seen_parts
from scancheck.checks.judging_device import judging_device
from scancheck.checks.oracle import CaseReport, Request, check_case, check_inputs
from scancheck.contract import Contract
from scancheck.diagnosis import VAGUE
from scancheck.kernel import Kernel
from scancheck.metrics import TensorMetrics
from scancheck.ops import op_named
from scancheck.ops.calling import op_of
from scancheck.ops.normal_form import state_outputs
from scancheck.recipes.build import build
from scancheck.recipes.inputs import within_limits
from scancheck.red_check import RedCheck, finding_of
from scancheck.runner import accepted_parameters, execute
from scancheck.verdict import RED, Check, Verdict

RUNS = 3  # calls on the same inputs, compared bit by bit
GRADIENT = "d "  # before the name of an input: its gradient


class Judge:
    """A kernel's trials, judged one after the other under one contract."""

    def __init__(self, kernel: Kernel, contract: Contract, *, gradients: bool) -> None:
        self.kernel, self.contract, self.gradients = kernel, contract, gradients
        self.op = op_named(kernel.op)
        self.device, self.why_on_cpu = judging_device(kernel)
        self.returned: tuple[str, ...] | None = None  # None: not known yet
        self.unseen: set[str] | None = None
        self.passing: dict[str, bool] | None = None

    def judge(self, trial: Trial) -> Judged:
        """The outcome of a trial; raises CaseInvalid for one the kernel cannot take."""
        limits = self.contract.domain
        inputs = trial.inputs
        if inputs is None and (limits or self.returned is None):
            inputs = build(trial.case)
        if inputs is not None and not within_limits(inputs, limits):
            return Judged(trial=trial, verdict=None)
        if self.returned is None and inputs is not None:
            op = op_of(trial.case)
            found = execute(self.kernel, op, inputs, trial.case.dtype, runs=1)
            self.returned = found.returned or None
        request = self._request(trial)
        if trial.inputs is None:
            kind = self._kind(trial)
            report = check_case(self.kernel, trial.case, request, cotangent_kind=kind)
        else:
            report = check_inputs(
                self.kernel,
                trial.case,
                trial.inputs,
                request,
                trial.cotangents,
                trial.cotangent_kind,
            )
        return self._judged(trial, report, request)

    def _kind(self, trial: Trial) -> str | None:
        """The trial's cotangents; dense ones where the only output is the other."""
        finals = {spec.name for spec in state_outputs(self.op)}
        if trial.cotangent_kind == "final_state" and not finals & {*self._returned}:
            return "dense"
        return trial.cotangent_kind

    @property
    def _returned(self) -> tuple[str, ...]:
        return self.returned or tuple(spec.name for spec in self.op.outputs)

    def _request(self, trial: Trial) -> Request:
        lacking = {spec.name for spec in self.op.outputs} - set(self._returned)
        return Request(
            contract=self.contract,
            gradients=trial.cotangent_kind is not None,
            elements=ELEMENTS,
            p=FALSE_ALARM_RATE,
            runs=RUNS,
            not_judged=frozenset(lacking),
            device=self.device,
        )

    def _judged(self, trial: Trial, report: CaseReport, request: Request) -> Judged:
        every = [
            *report.metrics.items(),
            *((GRADIENT + n, m) for n, m in report.gradient_metrics.items()),
        ]
        failure = detail = None
        if report.verdict in RED:
            check, failure = self._failure(report)
            if trial.in_full:
                detail = self._detail(report, check, failure, request)
        return Judged(
            trial=trial,
            verdict=report.verdict,
            failure=failure,
            detail=detail,
            reason=_reason(report),
            passing=self._passing(report),
            returned=report.outcome.returned,
            seen=self._seen(report),
            elements=sum(m.ratio.size for _, m in every),
            vacuous=sum(int((m.vacuous & ~m.wrong).sum()) for _, m in every),
            ratios={n: _worst(m) for n, m in every if m.ratio.size},
            rhos={str(c.tensor): c.rho for c in report.checks if c.rho is not None},
            why_on_cpu=self.why_on_cpu or report.why_on_cpu,
        )

    def _failure(self, report: CaseReport) -> tuple[Check, Failure]:
        """The red check that tells most, and why it is red."""
        causes = []
        for check in _distinct(red_checks(report)):
            cause, detail, _ = likely_cause(self.kernel, report, check)
            causes.append((check, cause, detail))
            if cause not in VAGUE:
                break
        telling = [item for item in causes if item[1] not in VAGUE]
        check, cause, _ = (telling or causes)[0]
        return check, Failure(
            verdict=check.verdict,
            cause=cause,
            key=_key(report, cause),
            reason=check.reason,
        )

    def _passing(self, report: CaseReport) -> dict[str, bool] | None:
        """Wider contracts that all failing outputs so far pass; None for no failure.

        The value says whether one of the passes meant anything (see passing_contracts).
        """
        outputs = [c for c in report.checks if c.check == "oracle"]
        if not any(check.verdict is Verdict.FAIL for check in outputs):
            return None
        if self.passing != {}:
            passing = passing_contracts(report, self.contract)
            self.passing = both_pass(self.passing, passing)
        return self.passing

    def _detail(
        self, report: CaseReport, check: Check, failure: Failure, request: Request
    ) -> Detail:
        item = RedCheck(kernel=self.kernel, report=report, check=check, request=request)
        diagnosis = diagnose(self.kernel, report, check, request, None)
        return Detail(
            finding=finding_of(item, diagnosis, replay=""),
            inputs=report.inputs,
            cotangents=report.cotangents,
        )

    def _seen(self, report: CaseReport) -> tuple[str, ...]:
        """Parts that no earlier trial of this process has shown to be seen."""
        if report.verdict not in (Verdict.PASS, Verdict.RANGE) or not self.returned:
            return ()
        if self.unseen is None:
            accepted = accepted_parameters(self.kernel, self.op)
            self.unseen = set(
                parts_of(self.op, accepted, self.returned, self.gradients)
            )
        seen = seen_parts(report, sorted(self.unseen))
        self.unseen -= seen
        return tuple(sorted(seen))


def both_pass(left: dict[str, bool] | None, right: dict[str, bool]) -> dict[str, bool]:
    """The contracts of both, informed where either is; all where one is not known."""
    if left is None:
        return right
    return {name: left[name] or told for name, told in right.items() if name in left}


def _distinct(checks: Iterable[Check]) -> list[Check]:
    """The checks without those that follow from others.

    The cause of all gradients is read together, and a wrong output explains them.
    """
    found = list(checks)
    others = [c for c in found if c.check != "gradient"]
    if any(c.check == "oracle" for c in others):
        return others
    return others + [c for c in found if c.check == "gradient"][:1]


def _key(report: CaseReport, cause: str) -> str:
    problem = report.outcome.problem
    if cause != "call" or problem is None:
        return cause
    place = re.search(r"\([^()]*:\d+, in [^()]*\)$", problem.message)
    return f"{cause} {problem.kind} {place.group() if place else ''}".rstrip()


def _worst(metrics: TensorMetrics) -> float:
    return float(metrics.ratio.max())


def _reason(report: CaseReport) -> str:
    """Why a case is neither passed nor red."""
    if report.verdict not in (Verdict.RANGE, Verdict.UNCERTIFIED):
        return ""
    return next(c.reason for c in report.checks if c.verdict is report.verdict)
