"""A campaign: rounds of trials on several processes, and what has come of them."""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Event, Lock, Thread
from time import monotonic

from scancheck.campaign.executor import KernelProcess
from scancheck.campaign.judging import both_pass
from scancheck.campaign.save import Saver, plain_finding, save
from scancheck.campaign.shrink import shrunk
from scancheck.campaign.stream import ROUND, Domain, run_round
from scancheck.campaign.trial import Failure, Judged, Trial
from scancheck.contract import Contract
from scancheck.diagnosis import VAGUE
from scancheck.errors import CaseInvalid
from scancheck.record import Finding
from scancheck.runner.own_process import Loader
from scancheck.runner.process import CASE_LIMIT_S, Stopped
from scancheck.verdict import RED, Verdict

MOST_WORKERS = 8
WAIT_S = 0.2  # between looks at the clock
HARNESS_FAILURES = 20  # after so many the campaign gives up
LATE_S = 60.0  # for what is being judged or shrunk when the time is over


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a campaign is to do."""

    load: Loader
    contract: Contract
    domain: Domain
    seed: int
    cases: int | None = None  # None: as many as the time allows
    seconds: float | None = None  # None: until the cases are judged
    case_limit_s: float = CASE_LIMIT_S  # after which a kernel counts as hung
    workers: int | None = None  # None: one for each core


@dataclass(slots=True, kw_only=True)
class Found:
    """A cause, the finding that shows it, and how often it was met."""

    failure: Failure
    finding: Finding
    drawn: Trial  # the first that failed for it
    shown: Judged  # the smallest that does
    cases: int = 1
    after_s: float = 0.0  # from the start of the campaign until it is in its file
    after_cases: int = 0
    shrunk_s: float | None = None  # until no smaller trial is looked for


@dataclass(slots=True)
class Progress:
    """What a campaign has seen so far."""

    started: float = field(default_factory=monotonic)
    cases: int = 0  # judged, whatever came of it
    outside: int = 0  # not judged: outside the contract's domain
    counts: dict[Verdict, int] = field(default_factory=dict)
    elements: int = 0
    vacuous: int = 0
    ratios: dict[str, float] = field(default_factory=dict)  # of trials that are not red
    worst: dict[str, float] = field(default_factory=dict)  # of all trials
    rhos: dict[str, float] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    returned: tuple[str, ...] = ()  # outputs that the kernel gives back
    ranges: list[str] = field(default_factory=list)
    uncertified: list[str] = field(default_factory=list)
    why_on_cpu: list[str] = field(default_factory=list)  # judged there, not on CUDA
    passing: dict[str, bool] | None = None  # wider contracts that all outputs pass
    found: dict[str, Found] = field(default_factory=dict)
    harness: list[str] = field(default_factory=list)  # failures of the checker itself
    interrupted: bool = False

    @property
    def seconds(self) -> float:
        """Since the campaign began."""
        return monotonic() - self.started

    @property
    def findings(self) -> tuple[Finding, ...]:
        """One for each cause: the most frequent first, those that say little last."""
        found = self.found.values()
        told = sorted(found, key=lambda f: (f.failure.cause in VAGUE, -f.cases))
        return tuple(replace(found.finding, cases=found.cases) for found in told)

    @property
    def worst_ratio(self) -> float:
        """The largest error / budget of a trial that is not red."""
        return max(self.ratios.values(), default=0.0)


OnProgress = Callable[[Progress], None]


def run_campaign(
    plan: Plan, saver: Saver, on_progress: OnProgress | None = None
) -> Progress:
    """What came of the campaign; each new cause is shrunk and saved at once.

    A Ctrl-C ends it, and what was found is kept. Raises CaseInvalid where the kernel
    cannot be loaded or called at all.
    """
    campaign = _Campaign(plan, saver)
    workers = plan.workers or min(MOST_WORKERS, _cores())
    threads = [
        Thread(target=campaign.work, args=(workers,), daemon=True)
        for _ in range(workers)
    ]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(WAIT_S)
            if plan.seconds is not None:
                late = campaign.progress.seconds - plan.seconds
                if late > 0.0:
                    campaign.over.set()
                # A case of many tokens may take minutes: it is then not judged.
                if late > max(LATE_S, plan.case_limit_s):
                    campaign.stop.set()
            if on_progress is not None:
                on_progress(campaign.progress)
    except KeyboardInterrupt:
        campaign.progress.interrupted = True
        campaign.over.set()
        campaign.stop.set()
        for thread in threads:
            thread.join()
    if campaign.refused is not None:
        raise campaign.refused
    campaign.name_roundings()
    return campaign.progress


class _Campaign:
    """What the threads of a campaign share."""

    def __init__(self, plan: Plan, saver: Saver) -> None:
        self.plan, self.saver = plan, saver
        self.progress = Progress()
        self.over = Event()  # no further trials
        self.stop = Event()  # nor anything else
        self.refused: BaseException | None = None
        self._lock = Lock()
        self._rounds = _rounds(plan.cases)

    def work(self, workers: int) -> None:
        """One thread: rounds until there are none, each trial in its own process."""
        process = KernelProcess(
            self.plan.load,
            self.plan.contract,
            gradients=self.plan.domain.gradients,
            limit_s=self.plan.case_limit_s,
            threads=max(1, _cores() // workers),
            stop=self.stop,
        )
        try:
            while not self.over.is_set():
                with self._lock:
                    number, size = next(self._rounds, (None, 0))
                if number is None:
                    return
                run_round(
                    self.plan.domain,
                    self.plan.seed,
                    number,
                    size,
                    lambda trial: self._one(process, trial),
                )
        except Exception as error:
            with self._lock:
                if self.progress.cases:  # what was found by then is kept
                    self.progress.harness.append(f"{type(error).__name__}: {error}")
                else:
                    self.refused = self.refused or error
            self.over.set()
            self.stop.set()
        finally:
            process.close()

    def _one(self, process: KernelProcess, trial: Trial) -> Judged | None:
        """The outcome of a trial, told and counted; None once the campaign is over."""
        if self.over.is_set():
            return None
        try:
            judged = process.judge(trial)
            new = self._count(judged)
            if new is not None:
                self._look_into(process, judged, new)
        except Stopped:
            return None
        except CaseInvalid:
            raise
        except RuntimeError as error:
            with self._lock:
                self.progress.harness.append(f"{trial.case.id}: {error}")
                if len(self.progress.harness) >= HARNESS_FAILURES:
                    self.over.set()
            return Judged(trial=trial, verdict=None)
        return judged

    def _count(self, judged: Judged) -> Found | None:
        """Adds a trial to what was seen; the entry of its cause where that is new."""
        progress, verdict = self.progress, judged.verdict
        with self._lock:
            if verdict is None:
                progress.outside += 1
                return None
            progress.cases += 1
            progress.counts[verdict] = progress.counts.get(verdict, 0) + 1
            progress.elements += judged.elements
            progress.vacuous += judged.vacuous
            progress.seen |= set(judged.seen)
            progress.returned = progress.returned or judged.returned
            if judged.why_on_cpu not in (None, *progress.why_on_cpu):
                progress.why_on_cpu.append(str(judged.why_on_cpu))
            red = verdict in RED
            for name, ratio in judged.ratios.items():
                for known in (progress.worst, *(() if red else (progress.ratios,))):
                    known[name] = max(known.get(name, 0.0), ratio)
            for name, value in judged.rhos.items():
                if math.isfinite(value):
                    progress.rhos[name] = max(progress.rhos.get(name, 0.0), value)
            told = f"{judged.trial.case.id}: {judged.reason}"
            if verdict is Verdict.RANGE:
                progress.ranges.append(told)
            if verdict is Verdict.UNCERTIFIED:
                progress.uncertified.append(told)
            if judged.passing is not None:
                progress.passing = both_pass(progress.passing, judged.passing)
            failure = judged.failure
            if failure is None:
                return None
            known_cause = progress.found.get(failure.key)
            if known_cause is not None:
                known_cause.cases += 1
                return None
            new = Found(
                failure=failure,
                finding=plain_finding(judged.trial, failure),
                drawn=judged.trial,
                shown=judged,
                after_cases=progress.cases,
            )
            progress.found[failure.key] = new
            return new

    def _look_into(self, process: KernelProcess, judged: Judged, new: Found) -> None:
        """Saves what fails for a new cause as it was drawn, then shrunk."""
        self._show(new, judged)
        new.after_s = self.progress.seconds
        if not new.failure.ended:
            full = process.judge(replace(judged.trial, in_full=True))
            if full.detail is not None:
                self._show(new, full)
        smallest = shrunk(process.judge, new.shown, new.failure)
        if smallest is not new.shown:
            self._show(new, smallest)
        new.shrunk_s = self.progress.seconds

    def _show(self, found: Found, judged: Judged) -> None:
        """Saves a cause on this trial from now on."""
        found.shown = judged
        found.finding = save(self.saver, found.drawn, judged, found.failure)

    def name_roundings(self) -> None:
        """Names what only a shorter format explains, and on all trials does."""
        passing = self.progress.passing or {}
        wider = next((text for text, informed in passing.items() if informed), None)
        if wider is None:
            return
        for found in self.progress.found.values():
            if found.finding.check == "oracle":
                found.finding = save(
                    self.saver, found.drawn, found.shown, found.failure, wider
                )


def _rounds(cases: int | None) -> Iterator[tuple[int, int]]:
    """Numbers and sizes of the rounds that hold so many trials."""
    for number in count():
        size = ROUND if cases is None else min(ROUND, cases - number * ROUND)
        if size <= 0:
            return
        yield number, size


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
