"""Cases judged by processes side by side say what they say when judged here."""

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from scancheck.case import Case, make_case
from scancheck.checks.oracle import CaseReport, Request
from scancheck.contract import Contract
from scancheck.gate import judges
from scancheck.gate.ahead import case_reports
from scancheck.gate.judges import Called, processes, report_here, reports_of
from scancheck.kernel import Kernel
from scancheck.oracles import threads

REQUEST = Request(
    contract=Contract(), gradients=True, not_judged=frozenset({"final_state"})
)


def scan(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """h, wrong by a little wherever T is a multiple of 5."""
    rows = [b[:, 0]]
    for t in range(1, b.shape[1]):
        rows.append(a[:, t] * rows[-1] + b[:, t])
    return torch.stack(rows, 1) * (1.0 + 1e-4 * (b.shape[1] % 5 == 0))


KERNEL = Kernel(name="tried", op="linear_scan", call=scan)


def asked(*lengths: int) -> list[tuple[Case, str | None]]:
    """Cases of these lengths, the gradients of one in two judged."""
    sizes = [{"B": 1, "T": steps, "D": 3} for steps in lengths]
    cases = [make_case("linear_scan", s, recipe="gaussian_slow", seed=1) for s in sizes]
    return [(case, "dense" if n % 2 else None) for n, case in enumerate(cases)]


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose cores are enough for two processes."""
    monkeypatch.setattr(threads, "cores", lambda: 2 * judges.CORES_OF_ONE)
    monkeypatch.setattr(judges, "LEAST_CASES", 1)


def assert_same(left: CaseReport, right: CaseReport) -> None:
    """The same checks, and the same bits of budgets and references."""
    assert left.case == right.case
    assert left.checks == right.checks
    assert left.cotangent_kind == right.cotangent_kind
    for name, budget in left.budget.outputs.items():
        assert np.array_equal(budget.error, right.budget.outputs[name].error)
        assert np.array_equal(left.truth.outputs[name].hi, right.truth.outputs[name].hi)
    assert left.gradient_metrics.keys() == right.gradient_metrics.keys()


@pytest.mark.usefixtures("many_cores")
def test_reports_are_those_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, passes and faults alike, though none was judged in this process."""
    cases = asked(9, 5, 3, 10, 12, 7, 8, 4, 15)
    found = list(case_reports(KERNEL, cases, REQUEST))
    monkeypatch.setattr(judges, "LEAST_CASES", len(cases) + 1)
    want = list(case_reports(KERNEL, cases, REQUEST))
    failed = [dict(r.case.sizes)["T"] for r in found if r.verdict == "FAIL"]
    assert failed == [5, 10, 15]
    for left, right in zip(found, want, strict=True):
        assert_same(left, right)


@pytest.mark.usefixtures("many_cores")
def test_whoever_leaves_early_is_not_kept() -> None:
    """The reports after those taken are not waited for, and none is called for."""
    begun = []

    def called() -> Iterator[Called]:
        for case in calls(5):
            begun.append(case.case)
            yield case

    reports = reports_of(called(), REQUEST, 5)
    next(reports)
    reports.close()
    assert 1 <= len(begun) <= 5


def calls(count: int) -> list[Called]:
    """Cases that the kernel has been called on."""
    made: list[Called] = []

    def kept(one: Called, request: Request) -> CaseReport:
        made.append(one)
        return report_here(one, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judges, "report_here", kept)
        patch.setattr(judges, "LEAST_CASES", count + 1)
        list(case_reports(KERNEL, asked(*range(3, 3 + count)), REQUEST))
    return made


@pytest.mark.usefixtures("many_cores")
def test_a_process_that_dies_costs_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was judging is judged here."""
    ready = calls(4)
    monkeypatch.setattr(judges, "_prepare", os._exit)
    found = list(reports_of(iter(ready), REQUEST, 4))
    assert [r.case for r in found] == [one.case for one in ready]
    for report, one in zip(found, ready, strict=True):
        assert_same(report, report_here(one, REQUEST))


def test_few_cores_or_cases_have_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores never, sixteen for many cases."""
    monkeypatch.setattr(threads, "cores", lambda: 2)
    assert processes(10**6) < 2
    monkeypatch.setattr(threads, "cores", lambda: 16)
    assert processes(judges.LEAST_CASES - 1) < 2
    assert processes(judges.LEAST_CASES) == judges.MOST


@pytest.mark.usefixtures("many_cores")
def test_a_device_judges_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that is large enough for a card does not leave this process."""
    monkeypatch.setattr(judges, "device_for_case", lambda *_: "cuda")
    monkeypatch.setattr(judges, "ProcessPoolExecutor", NoProcess)
    (report,) = reports_of(iter(calls(1)), REQUEST, 1)
    assert report.verdict == "PASS"
    on_card = replace(REQUEST, device="cuda")
    assert judges._handed_over(NoProcess(), calls(1)[0], on_card) is None


class NoProcess:
    """A pool that nothing may be given to."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, *_: object) -> None:
        """Fails: nothing was to be handed over."""
        raise AssertionError

    def shutdown(self, **_: object) -> None:
        """Nothing to end."""
