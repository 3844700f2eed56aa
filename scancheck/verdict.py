"""What counts as what: verdicts of cases and runs, and exit codes (semantics.md)."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np

from scancheck.metrics import TensorMetrics


class Verdict(StrEnum):
    """Outcome of one check on one case."""

    PASS = "PASS"
    FAIL = "FAIL"
    SUSPECT = "SUSPECT"
    NONFINITE = "NONFINITE"
    ERROR = "ERROR"
    RANGE = "RANGE"
    UNCERTIFIED = "UNCERTIFIED"


# Worst first: a case has the verdict of its worst check.
SEVERITY = (
    Verdict.ERROR,
    Verdict.FAIL,
    Verdict.NONFINITE,
    Verdict.SUSPECT,
    Verdict.UNCERTIFIED,
    Verdict.RANGE,
    Verdict.PASS,
)
RED = frozenset({Verdict.ERROR, Verdict.FAIL, Verdict.NONFINITE, Verdict.SUSPECT})
MEANING = {
    Verdict.PASS: "within the budget",
    Verdict.FAIL: "beyond what the contract can explain",
    Verdict.SUSPECT: "within the sound budget, beyond the probable one",
    Verdict.NONFINITE: "NaN or infinity where the truth is finite",
    Verdict.ERROR: "the kernel raised or returned the wrong shape or dtype",
    Verdict.RANGE: "the declared structure leaves the format's range here",
    Verdict.UNCERTIFIED: "the reference could not be certified",
}

EXIT_PASS, EXIT_RED, EXIT_USAGE, EXIT_INCONCLUSIVE, EXIT_HARNESS = 0, 1, 2, 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at in one case, and how it came out."""

    check: str  # oracle, gradient, repeat, inputs, call, or a relation's name
    verdict: Verdict
    tensor: str | None = None  # output or gradient it is about
    ratio: float | None = None  # largest error / budget
    rho: float | None = None  # RMS error over predicted RMS error, where it applies
    index: tuple[int, ...] | None = None  # first wrong element, in time order
    reason: str = ""  # one sentence


def judge(
    check: str,
    metrics: TensorMetrics,
    *,
    time_axis: int | None,
    rho: float | None = None,
    rho_limit: float | None = None,
    beyond_probable: bool = False,
) -> Check:
    """The verdict on one tensor.

    `rho_limit` is given only where the probable bound judges; `beyond_probable` says
    that an element exceeds the lambda bound there.
    """
    wrong = metrics.wrong
    finite = metrics.ratio[np.isfinite(metrics.ratio)]
    ratio = float(finite.max()) if finite.size else None
    if np.isinf(metrics.ratio).any():
        ratio = None
    result = partial(Check, check=check, tensor=metrics.name, ratio=ratio, rho=rho)
    beyond = (metrics.ratio > 1.0) | metrics.wrong_kind
    if beyond.any():
        index = first_wrong(wrong, time_axis)
        return result(verdict=Verdict.FAIL, index=index, reason=_fail_reason(metrics))
    if metrics.nonfinite.any():
        index = first_wrong(wrong, time_axis)
        count = int(metrics.nonfinite.sum())
        reason = f"{count} of {wrong.size} values are NaN or infinite, the truth is not"
        return result(verdict=Verdict.NONFINITE, index=index, reason=reason)
    if rho_limit is not None and rho is not None and rho > rho_limit:
        reason = (
            f"RMS error is {rho:.2f} times the predicted one; independent roundings "
            f"stay below {rho_limit:.2f}"
        )
        return result(verdict=Verdict.SUSPECT, reason=reason)
    if beyond_probable:
        reason = "an element exceeds the probable bound lambda u sqrt(v)"
        return result(verdict=Verdict.SUSPECT, reason=reason)
    if metrics.uncertified.any():
        count = int(metrics.uncertified.sum())
        reason = f"{count} of {wrong.size} reference values could not be certified"
        return result(verdict=Verdict.UNCERTIFIED, reason=reason)
    if metrics.excused.any():
        count = int(metrics.excused.sum())
        reason = (
            f"{count} of {wrong.size} values are not finite; products or sums of the "
            "declared structure leave the format's range"
        )
        return result(verdict=Verdict.RANGE, reason=reason)
    return result(verdict=Verdict.PASS)


def _fail_reason(metrics: TensorMetrics) -> str:
    count, total = int(metrics.wrong.sum()), metrics.wrong.size
    if metrics.wrong_kind.any() and not (metrics.ratio > 1.0).any():
        return f"{count} of {total} values are finite where infinity is right"
    worst = float(metrics.ratio.max())
    times = "any bound (it is zero)" if np.isinf(worst) else f"{worst:.3g} times"
    return f"{count} of {total} values are beyond the budget, the worst by {times}"


def first_wrong(
    wrong: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], time_axis: int | None
) -> tuple[int, ...] | None:
    """Index of the first wrong element, earliest token first."""
    if not wrong.any():
        return None
    places = np.argwhere(wrong)
    if time_axis is None:
        return tuple(int(i) for i in places[0])
    order = np.argsort(places[:, time_axis], kind="stable")
    return tuple(int(i) for i in places[order[0]])


def worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """The most severe of the verdicts; PASS when there is none."""
    found = set(verdicts)
    return next((v for v in SEVERITY if v in found), Verdict.PASS)


def exit_code(verdicts: Iterable[Verdict], *, blind: bool, require: set[str]) -> int:
    """0 pass, 1 any red, 3 no red but blind, uncertified or nothing judged."""
    found = list(verdicts)
    red = RED | ({Verdict.RANGE} if "range" in require else set())
    if any(v in red for v in found):
        return EXIT_RED
    judged = [v for v in found if v in (Verdict.PASS, Verdict.RANGE)]
    if blind or not judged or Verdict.UNCERTIFIED in found:
        return EXIT_INCONCLUSIVE
    return EXIT_PASS


def run_label(worst: Verdict, code: int, blind: bool, any_case: bool) -> str:
    """The verdict of a run in one word."""
    if code == 1:
        return worst.value
    if not any_case:
        return "NOT_JUDGED"
    if worst is Verdict.UNCERTIFIED:
        return "UNCERTIFIED"
    return "BLIND" if blind else "PASS"
