"""`scancheck.fuzz`: a campaign against one target, and its record."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from scancheck.campaign.run import OnProgress, Plan, Progress, run_campaign
from scancheck.campaign.save import Saver, writable_folder
from scancheck.campaign.stream import LONGEST, domain_of
from scancheck.campaign.trial import FALSE_ALARM_RATE
from scancheck.checks.influence import parts_of
from scancheck.contract import Contract, format_contract, parse_contract
from scancheck.environment import describe
from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS
from scancheck.gate.verify import Result, check_gradients
from scancheck.kernel import Kernel
from scancheck.ops import op_named
from scancheck.recipes.taken_sizes import taken_sizes
from scancheck.record import RunRecord, finite_or_none, to_json, write_json
from scancheck.registry import loader, resolve_target
from scancheck.runner import accepted_parameters, required_parameters
from scancheck.runner.device import device_for
from scancheck.runner.process import CASE_LIMIT_S
from scancheck.verdict import EXIT_HARNESS, exit_code, run_label, worst_verdict

RECORD = "run.json"


def fuzz(
    target: str | Kernel,
    *,
    op: str | None = None,
    dtypes: Sequence[str] | None = None,
    contract: Contract | str | None = None,
    profile: str = "quick",
    gradients: bool = False,
    seed: int = 0,
    cases: int | None = None,
    seconds: float | None = None,
    case_limit_s: float = CASE_LIMIT_S,
    workers: int | None = None,
    device: str | None = None,
    output: str | Path,
    on_progress: OnProgress | None = None,
) -> Result:
    """Draws cases of a kernel until `cases` are judged or `seconds` are over.

    What is being judged then has another minute, or `case_limit_s` where that is more.
    The kernel runs in processes of its own and is loaded there again by its name, so a
    `Kernel` must be one that can be pickled. Each cause found is shrunk and saved as a
    file in the folder `output`, and the run's record as run.json. The same arguments
    judge the same cases. `device` is cpu, cuda or cuda:N, by default the kernel's
    first. Raises CaseInvalid for a request that makes no sense and
    KernelUnavailable for a kernel that cannot run here.
    """
    (kernel,) = resolve_target(target, op)
    used_device = device_for(kernel, device)
    if gradients:
        check_gradients(kernel)
    declared = contract is not None or kernel.contract is not None
    if isinstance(contract, str):
        contract = parse_contract(contract)
    used = contract or kernel.contract or Contract()
    names = tuple(dict.fromkeys(dtypes)) if dtypes else kernel.dtypes
    if profile not in LONGEST:
        expected = " or ".join(LONGEST)
        raise CaseInvalid(f"profile: expected {expected}; got {profile!r}")
    if seed < 0:
        raise CaseInvalid(f"seed: expected 0 or more; got {seed}")
    _check(names, cases, seconds, case_limit_s)
    known = op_named(kernel.op)
    accepted = accepted_parameters(kernel, known)
    domain = domain_of(
        kernel,
        known,
        dtypes=names,
        profile=profile,
        gradients=gradients,
        accepted=accepted,
        required=required_parameters(kernel, accepted),
        chunk=kernel.chunk or used.structure.chunk,
        taken=taken_sizes(kernel, known, used, gradients=gradients),
    )
    saver = Saver(
        folder=writable_folder(Path(output)),
        target=kernel.name,
        registered=isinstance(target, str) and ":" not in target,
        contract=used,
        seed=seed,
        profile=profile,
        device=used_device,
    )
    plan = Plan(
        load=loader(target, op, used_device),
        contract=used,
        domain=domain,
        seed=seed,
        cases=cases,
        seconds=seconds,
        case_limit_s=case_limit_s,
        workers=workers,
    )
    progress = run_campaign(plan, saver, on_progress)
    record = replace(
        _record(plan, saver, declared, accepted, progress),
        device_asked=device is not None,
    )
    write_json(to_json(record), saver.folder / RECORD)
    return Result(record)


def _check(
    dtypes: tuple[str, ...],
    cases: int | None,
    seconds: float | None,
    case_limit_s: float,
) -> None:
    for name in dtypes:
        if name not in FORMATS:
            raise CaseInvalid(
                f"dtype: expected one of {', '.join(FORMATS)}; got {name!r}"
            )
    if cases is None and seconds is None:
        raise CaseInvalid("fuzz: expected a time, a number of cases, or both")
    for what, value in (
        ("cases", cases),
        ("time", seconds),
        ("case limit", case_limit_s),
    ):
        if value is not None and not value > 0:
            raise CaseInvalid(f"{what}: expected more than 0; got {value}")


def _record(
    plan: Plan,
    saver: Saver,
    declared: bool,
    accepted: frozenset[str],
    progress: Progress,
) -> RunRecord:
    """The campaign as data, with one finding for each cause."""
    domain = plan.domain
    parts: tuple[str, ...] = ()
    if progress.returned:
        parts = parts_of(domain.op, accepted, progress.returned, domain.gradients)
    unseen = tuple(part for part in parts if part not in progress.seen)
    verdicts = list(progress.counts)
    worst = worst_verdict(verdicts)
    code = exit_code(verdicts, blind=bool(unseen), require=set())
    label = run_label(worst, code, bool(unseen), bool(verdicts))
    if progress.interrupted:
        label, code = "INTERRUPTED", EXIT_HARNESS
    elif progress.harness:
        label, code = "HARNESS", EXIT_HARNESS
    notes = [f"failed in the checker: {text}" for text in progress.harness[:3]]
    if progress.outside:
        notes.append(f"{progress.outside} cases: outside the domain of the contract")
    notes += domain.taken.left_out(domain.dtypes)
    return RunRecord(
        verdict=label,
        exit_code=code,
        target=saver.target,
        op=domain.op.name,
        dtype=",".join(domain.dtypes),
        profile=domain.profile,
        seed=plan.seed,
        p=FALSE_ALARM_RATE,
        contract=format_contract(plan.contract),
        contract_declared=declared,
        gradients=domain.gradients,
        device=saver.device,
        counts={v: progress.counts[v] for v in sorted(progress.counts)},
        vacuous=progress.vacuous,
        elements=progress.elements,
        worst_ratio={n: finite_or_none(r) for n, r in sorted(progress.worst.items())},
        worst_rho={n: finite_or_none(r) for n, r in sorted(progress.rhos.items())},
        seen=tuple(part for part in parts if part in progress.seen),
        unseen=unseen,
        not_judged=tuple(notes),
        environment=describe(),
        duration_s=round(progress.seconds, 3),
        replay=_command(plan, saver, declared, progress),
        range_cases=tuple(progress.ranges),
        uncertified_cases=tuple(progress.uncertified),
        judged_on_cpu=tuple(progress.why_on_cpu),
        findings=progress.findings,
    )


def _command(plan: Plan, saver: Saver, declared: bool, progress: Progress) -> str:
    """What judges the same cases again."""
    domain = plan.domain
    parts = ["scancheck", "fuzz", saver.target, "--op", domain.op.name]
    parts += ["--dtype", ",".join(domain.dtypes), "--profile", domain.profile]
    if declared:
        parts += ["--contract", format_contract(plan.contract)]
    if domain.gradients:
        parts.append("--gradients")
    if saver.device != "cpu":
        parts += ["--device", saver.device]
    if plan.case_limit_s != CASE_LIMIT_S:
        parts += ["--case-time", f"{plan.case_limit_s:g}s"]
    count = plan.cases or max(1, progress.cases + progress.outside)
    parts += ["--seed", str(plan.seed), "--cases", str(count)]
    return shlex.join([*parts, "-o", str(saver.folder)])
