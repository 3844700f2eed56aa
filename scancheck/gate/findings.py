"""From the red checks of a run to its findings, each on its clearest case."""

from collections import Counter
from typing import Any

from scancheck.checks.experiments import diagnose, likely_cause, passing_contracts
from scancheck.checks.oracle import CaseReport
from scancheck.diagnosis import VAGUE, tokens_of
from scancheck.ops.calling import calling_of
from scancheck.ops.normal_form import Op, spec_of
from scancheck.record import Finding
from scancheck.red_check import RedCheck, finding_of
from scancheck.verdict import SEVERITY, Check, Verdict

# Cases of one kind of failure whose likely causes are compared.
DIAGNOSED = 4
JUDGED_AGAIN = 12  # failing cases that a wider contract must pass


def findings_of(op: Op, red: list[RedCheck], replay: str) -> list[Finding]:
    """One finding per check, tensor and verdict; the most telling come first."""
    groups: dict[tuple[str, str | None, Verdict], list[RedCheck]] = {}
    plain = {item.check.tensor for item in red if item.check.check == "oracle"}
    repeats = any(item.check.check == "repeat" for item in red)
    for item in red:
        check = item.check
        # A wrong or changing output breaks its relations too: nothing new is said.
        relation = check.check.startswith("relation:")
        if relation and (repeats or check.tensor in plain):
            continue
        key = (check.check, check.tensor, check.verdict)
        groups.setdefault(key, []).append(item)
    widest = _would_pass(red)
    findings = []
    for items in groups.values():
        items.sort(key=lambda item: _clearness(op, item.report, item.check))
        chosen = _clearest(items[:DIAGNOSED])
        diagnosis = diagnose(
            chosen.kernel, chosen.report, chosen.check, chosen.request, widest
        )
        case = f"{replay} --case {chosen.report.case.id}"
        findings.append(finding_of(chosen, diagnosis, replay=case, cases=len(items)))
    return sorted(findings, key=_importance)


def unmet(op: Op, name: str, note: str, replay: str) -> Finding:
    """The finding that something demanded by --require could not be judged."""
    return Finding(
        check="require",
        verdict=Verdict.ERROR,
        tensor=None,
        ratio=None,
        rho=None,
        first_wrong_index=None,
        place=None,
        cause="call",
        reason=f"--require {name}: {note}",
        advice=f"accept or return it under the op's own name ({op.name}), or do not "
        "require it",
        case={},
        case_id="",
        file=None,
        replay=replay,
    )


def _clearest(items: list[RedCheck]) -> RedCheck:
    """The first case with the cause that most of the cases agree on."""
    causes = [likely_cause(i.kernel, i.report, i.check)[0] for i in items]
    votes = Counter(cause for cause in causes if cause not in VAGUE) or Counter(causes)
    return items[causes.index(votes.most_common(1)[0][0])]


def _would_pass(red: list[RedCheck]) -> str | None:
    """The narrowest wider contract that every failing case passes, one informed."""
    failing = {
        item.report.case.id: item
        for item in red
        if item.check.check == "oracle" and item.check.verdict is Verdict.FAIL
    }
    left: dict[str, bool] | None = None
    for item in list(failing.values())[:JUDGED_AGAIN]:
        passing = passing_contracts(item.report, item.request.contract)
        before = passing if left is None else left
        left = {c: before[c] or told for c, told in passing.items() if c in before}
        if not left:
            return None
    return next((c for c, told in (left or {}).items() if told), None)


def _clearness(op: Op, report: CaseReport, check: Check) -> tuple[Any, ...]:
    """Sorts the cases of a finding: a few chunks long, then most tokens wrong.

    Calls of one sequence a row come first: what fails there is no matter of packing.
    """
    steps = dict(report.case.sizes)[op.time_axis]
    chunk = int(dict(report.case.options).get("chunk") or 64)
    metrics = report.metrics.get(str(check.tensor))
    wrong = 0
    if metrics is not None and check.check == "oracle":
        axes = spec_of(op, metrics.name, metrics.wrong.ndim).axes
        if op.time_axis in axes:
            tokens = tokens_of(metrics.wrong, axes.index(op.time_axis))
            wrong = int(tokens.sum())
    shows_carry = 2 * chunk < steps <= 6 * chunk
    several = calling_of(dict(report.case.options)) is not None
    return (several, not shows_carry, -wrong, steps)


def _importance(finding: Finding) -> tuple[int, int, int]:
    """What explains other findings before what follows, worse before better."""
    order = ("require", "call", "repeat", "oracle", "gradient")
    rank = order.index(finding.check) if finding.check in order else len(order)
    severity = SEVERITY.index(Verdict(finding.verdict))
    return (finding.cause == "gradient_follows", severity, rank)
