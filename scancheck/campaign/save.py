"""The files of a campaign: one for each cause, replaced as it is shrunk."""

import hashlib
import os
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scancheck.campaign.finding_file import SUFFIX, StoredFinding, write_finding
from scancheck.campaign.trial import Failure, Judged, Trial
from scancheck.case import case_to_json
from scancheck.checks.experiments import PATTERNS, explained_by
from scancheck.contract import Contract
from scancheck.diagnosis import CAUSES
from scancheck.environment import describe
from scancheck.errors import CaseInvalid
from scancheck.recipes.build import build
from scancheck.recipes.catalog import profile_of
from scancheck.recipes.inputs import cotangents
from scancheck.record import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Saver:
    """Where findings go, and what they all say."""

    folder: Path
    target: str  # the kernel as it was named
    registered: bool  # whether that name means the same everywhere
    contract: Contract
    seed: int
    profile: str
    device: str  # cpu or cuda:N

    def path_of(self, trial: Trial, failure: Failure) -> Path:
        """The file of a cause that was first met on this trial."""
        return self.folder / _file_name(trial, failure, self.target)


def save(
    saver: Saver,
    drawn: Trial,
    judged: Judged,
    failure: Failure,
    would_pass: str | None = None,
) -> Finding:
    """Writes what fails, and gives the finding that names the file.

    `judged` is the drawn trial or one that was shrunk from it; `would_pass` a wider
    contract that all outputs of the campaign pass. Raises OSError where the folder
    cannot be written.
    """
    trial, detail = judged.trial, judged.detail
    if detail is not None:
        finding, inputs, bars = detail.finding, detail.inputs, detail.cotangents
    else:
        finding = plain_finding(trial, failure)
        inputs, bars = trial.inputs or build(trial.case), trial.cotangents
        if bars is None and trial.cotangent_kind is not None:
            bars = cotangents(trial.case, trial.cotangent_kind, trial.case.seed)
    if would_pass is not None:
        finding = _under(finding, would_pass)
    path = saver.path_of(drawn, failure)
    finding = replace(
        finding,
        profile=profile_of(drawn.case.recipe),  # what was shrunk has no recipe
        file=str(path),
        replay=_replay(saver, path),
    )
    stored = StoredFinding(
        target=saver.target,
        contract=saver.contract,
        gradients=trial.cotangent_kind is not None,
        case=trial.case,
        cotangent_kind=trial.cotangent_kind,
        inputs=inputs,
        cotangents=bars,
        finding=finding,
        key=failure.key,
        campaign=_campaign(saver, drawn),
        environment=describe(),
    )
    write_finding(stored, path)
    return finding


def _under(finding: Finding, would_pass: str) -> Finding:
    """The finding with what a wider contract says about its cause."""
    if finding.cause not in PATTERNS:
        return replace(finding, would_pass=would_pass)
    cause, detail = explained_by(would_pass, finding.cause)
    what, _, _ = finding.reason.partition(". Likely cause: ")
    return replace(
        finding,
        would_pass=would_pass,
        cause=cause,
        reason=f"{what}. Likely cause: {CAUSES[cause].text}; {detail}",
        advice=CAUSES[cause].advice,
    )


def plain_finding(trial: Trial, failure: Failure) -> Finding:
    """The finding of a failure of which no more is known than that it is one."""
    cause = CAUSES[failure.cause]
    return Finding(
        check="call",
        verdict=failure.verdict,
        tensor=None,
        ratio=None,
        rho=None,
        first_wrong_index=None,
        place=None,
        cause=failure.cause,
        reason=f"{failure.reason}. Likely cause: {cause.text}",
        advice=cause.advice,
        case=case_to_json(trial.case),
        case_id=trial.case.id,
        profile=profile_of(trial.case.recipe),
        file=None,
        replay="",
    )


def writable_folder(folder: Path) -> Path:
    """The folder, made where it is missing; raises CaseInvalid where it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CaseInvalid(f"-o {folder}: cannot be made ({error.strerror})") from error
    if not os.access(folder, os.W_OK):
        raise CaseInvalid(f"-o {folder}: the folder cannot be written")
    return folder


def _campaign(saver: Saver, drawn: Trial) -> dict[str, Any]:
    return {
        "seed": saver.seed,
        "profile": saver.profile,
        "device": saver.device,
        "drawn": case_to_json(drawn.case),
        "drawn_id": drawn.case.id,
    }


def _replay(saver: Saver, path: Path) -> str:
    """A finding never names code that is run: a target of the user's is given again."""
    target = () if saver.registered else (saver.target,)
    return shlex.join(["scancheck", "replay", str(path), *target])


def _file_name(trial: Trial, failure: Failure, target: str) -> str:
    words = re.sub(r"[^a-z0-9_]+", "-", failure.key.split("(")[0].strip().lower())
    text = f"{target} {trial.case.id} {trial.cotangent_kind} {failure.key}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{words}-{trial.case.dtype}-{digest}{SUFFIX}"
