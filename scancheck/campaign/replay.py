"""A stored finding judged again, in a process of its own."""

from dataclasses import dataclass
from threading import Event

from scancheck.campaign.executor import KernelProcess
from scancheck.campaign.finding_file import StoredFinding
from scancheck.campaign.trial import Judged, Trial
from scancheck.runner.own_process import Loader
from scancheck.verdict import RED


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a finding has come to."""

    stored: StoredFinding
    judged: Judged

    @property
    def fails(self) -> bool:
        """Whether it is red still, or again."""
        return self.judged.verdict in RED

    @property
    def alike(self) -> bool:
        """Whether it fails with the verdict and the cause that are stored."""
        failure = self.judged.failure
        return failure is not None and (failure.verdict, failure.key) == (
            self.stored.finding.verdict,
            self.stored.key,
        )


def trial_of(stored: StoredFinding) -> Trial:
    """The stored tensors as a trial, to be judged in full."""
    return Trial(
        case=stored.case,
        cotangent_kind=stored.cotangent_kind,
        inputs=stored.inputs,
        cotangents=stored.cotangents,
        in_full=True,
    )


def replay_finding(
    stored: StoredFinding, load: Loader, *, case_limit_s: float
) -> Replayed:
    """The stored tensors judged under the stored contract.

    Raises CaseInvalid where the kernel cannot be given them.
    """
    process = KernelProcess(
        load,
        stored.contract,
        gradients=stored.gradients,
        limit_s=case_limit_s,
        threads=1,
        stop=Event(),
    )
    try:
        return Replayed(stored=stored, judged=process.judge(trial_of(stored)))
    finally:
        process.close()
