"""`scancheck.replay`: a finding's file, and what its kernel does with it now."""

import shlex
import time
from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

from scancheck.campaign.finding_file import StoredFinding, read_finding
from scancheck.campaign.judging import Judge
from scancheck.campaign.replay import Replayed, replay_finding, trial_of
from scancheck.campaign.save import plain_finding
from scancheck.campaign.trial import FALSE_ALARM_RATE
from scancheck.contract import Contract, format_contract
from scancheck.environment import describe
from scancheck.errors import CaseInvalid, KernelUnavailable
from scancheck.gate.verify import Result
from scancheck.kernel import Kernel
from scancheck.record import Finding, RunRecord, finite_or_none
from scancheck.registry import loader, resolve_target
from scancheck.runner.device import device_for
from scancheck.runner.process import CASE_LIMIT_S
from scancheck.verdict import exit_code, run_label, worst_verdict


def replay(
    file: str | Path,
    target: str | Kernel | Callable[..., Any] | None = None,
    *,
    case_limit_s: float = CASE_LIMIT_S,
    device: str | None = None,
) -> Result:
    """Judges the tensors of a finding again: red while it fails, a pass once it does
    not.

    `target` defaults to the registered kernel that the file names; code of the user's
    own has to be named, so that no file can choose what is run. A kernel that is given
    by name runs in a process of its own, an object in this one. `device` defaults to
    the kind on which the kernel failed. Raises
    RecordUnreadable for a file that is no finding, CaseInvalid where a target is
    needed or does not fit.
    """
    path = Path(file)
    stored = read_finding(path)
    if target is None:
        target = stored.target
        if ":" in target:
            raise CaseInvalid(
                f"{path}: its kernel {target} is no part of scancheck, and a file does "
                "not choose what is run; name the kernel: "
                + shlex.join(["scancheck", "replay", str(path), target])
            )
    (kernel,) = resolve_target(target, stored.case.op)
    used_device = _device(kernel, stored, device)
    started = time.monotonic()
    if isinstance(target, str):
        load = loader(target, stored.case.op, used_device)
        replayed = replay_finding(stored, load, case_limit_s=case_limit_s)
    else:
        here = changed(kernel, devices=(used_device,))
        judge = Judge(here, stored.contract, gradients=stored.gradients)
        replayed = Replayed(stored=stored, judged=judge.judge(trial_of(stored)))
    seconds = time.monotonic() - started
    record = _record(path, kernel, replayed, seconds, device)
    return Result(changed(record, device=used_device, device_asked=device is not None))


def _device(kernel: Kernel, stored: StoredFinding, asked: str | None) -> str:
    """The device asked for, or one of the kind that the campaign had."""
    before = stored.campaign.get("device")
    kind = before.partition(":")[0] if isinstance(before, str) else None
    if asked is not None or kind not in ("cpu", "cuda"):
        return device_for(kernel, asked)
    try:
        return device_for(kernel, kind)
    except KernelUnavailable as error:
        raise KernelUnavailable(
            f"{error}; the kernel failed on {before}, and --device judges it elsewhere"
        ) from None


def _record(
    path: Path,
    kernel: Kernel,
    replayed: Replayed,
    seconds: float,
    device: str | None,
) -> RunRecord:
    stored, judged = replayed.stored, replayed.judged
    verdicts = [judged.verdict] if judged.verdict is not None else []
    worst = worst_verdict(verdicts)
    code = exit_code(verdicts, blind=False, require=set())
    command = ["scancheck", "replay", str(path)]
    if kernel.name != stored.target or ":" in kernel.name:
        command.append(kernel.name)
    if device is not None:
        command += ["--device", device]
    again = shlex.join(command)
    profile, seed = stored.campaign.get("profile"), stored.campaign.get("seed")
    told = f"{stored.case.id}: {judged.reason}"
    return RunRecord(
        verdict=run_label(worst, code, False, bool(verdicts)),
        exit_code=code,
        target=kernel.name,
        op=stored.case.op,
        dtype=stored.case.dtype,
        profile=str(profile),
        seed=seed if isinstance(seed, int) else 0,
        p=FALSE_ALARM_RATE,
        contract=format_contract(stored.contract),
        contract_declared=stored.contract != Contract(),
        gradients=stored.gradients,
        counts={verdict.value: 1 for verdict in verdicts},
        vacuous=judged.vacuous,
        elements=judged.elements,
        worst_ratio={n: finite_or_none(r) for n, r in sorted(judged.ratios.items())},
        worst_rho={n: finite_or_none(r) for n, r in sorted(judged.rhos.items())},
        seen=judged.seen,
        unseen=(),
        not_judged=(story(replayed),),
        environment=describe(),
        duration_s=round(seconds, 3),
        replay=again,
        range_cases=(told,) if judged.verdict == "RANGE" else (),
        uncertified_cases=(told,) if judged.verdict == "UNCERTIFIED" else (),
        findings=_findings(path, replayed, again),
        judged_on_cpu=(judged.why_on_cpu,) if judged.why_on_cpu is not None else (),
    )


def story(replayed: Replayed) -> str:
    """What has become of the finding, in one sentence."""
    finding, judged = replayed.stored.finding, replayed.judged
    before = f"{finding.verdict} {finding.cause}"
    if judged.verdict is None:
        return f"stored as {before}: outside the contract's domain"
    if replayed.alike:
        return f"stored as {before}: fails in the same way"
    if judged.failure is not None:
        now = f"{judged.failure.verdict} {judged.failure.cause}"
        return f"stored as {before}: fails in another way, {now}"
    return f"stored as {before}: no longer fails"


def _findings(path: Path, replayed: Replayed, again: str) -> tuple[Finding, ...]:
    judged = replayed.judged
    if judged.failure is None:
        return ()
    if judged.detail is not None:
        finding = judged.detail.finding
    else:
        finding = plain_finding(judged.trial, judged.failure)
    profile = replayed.stored.finding.profile
    return (changed(finding, profile=profile, file=str(path), replay=again),)
