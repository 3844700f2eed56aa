"""A kernel's process as a campaign sees it: a crash or a hang costs one trial."""

import re
from functools import partial
from threading import Event

from scancheck.campaign.trial import Failure, Judged, Trial, steps_of
from scancheck.campaign.worker import prepare
from scancheck.contract import Contract
from scancheck.kernel_server import FIRST_BACKWARD
from scancheck.runner.outcome import ProblemKind
from scancheck.runner.own_process import Loader
from scancheck.runner.process import AnsweringProcess, Ended, allowed_s
from scancheck.runner.serving import KernelInterrupt
from scancheck.verdict import Verdict

# Imported once, by the server that the processes are forked from.
PRELOADED = (
    "scancheck.campaign.worker",
    "scancheck.campaign.preload",
    "scancheck.registry",
    FIRST_BACKWARD,
)


class KernelProcess:
    """One process at a time that judges trials of one kernel."""

    def __init__(
        self,
        load: Loader,
        contract: Contract,
        *,
        gradients: bool,
        limit_s: float,
        threads: int,
        stop: Event,
    ) -> None:
        self._limit_s = limit_s
        self._process = AnsweringProcess(
            partial(prepare, load, contract, gradients),
            preload=PRELOADED,
            threads=threads,
            stop=stop,
        )

    def judge(self, trial: Trial) -> Judged:
        """The outcome of a trial; ERROR where the kernel ends or blocks its process.

        Raises CaseInvalid where the kernel cannot take the trial or cannot be loaded,
        RuntimeError where the harness failed, and Stopped when the campaign is over.
        """
        allowed = allowed_s(self._limit_s, steps_of(trial))
        try:
            judged = self._process.ask(trial, allowed)
        except KernelInterrupt as error:
            return _error(trial, "raised", str(error))
        except Ended as ended:
            if ended.in_kernel:
                return _error(trial, ended.kind, str(ended))
            if ended.kind == "hung":
                reason = f"judging it took more than {allowed:g} s"
                return Judged(trial=trial, verdict=Verdict.UNCERTIFIED, reason=reason)
            raise RuntimeError(f"the harness {ended}") from None
        assert isinstance(judged, Judged)
        return judged

    def close(self) -> None:
        """Ends the process and removes its log."""
        self._process.close()


def _error(trial: Trial, kind: ProblemKind, message: str) -> Judged:
    place = re.search(r"\([^()]*:\d+, in [^()]*\)$", message)
    key = f"call {kind} {place.group() if place else ''}".rstrip()
    return Judged(
        trial=trial,
        verdict=Verdict.ERROR,
        failure=Failure(
            verdict=Verdict.ERROR,
            cause="call",
            key=key,
            reason=f"the kernel {message}",
            ended="" if kind == "raised" else kind,
        ),
    )
