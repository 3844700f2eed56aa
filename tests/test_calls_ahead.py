"""A kernel in another process is called on a case while the one before is judged."""

from collections.abc import Mapping
from dataclasses import replace
from threading import Event, current_thread, main_thread
from typing import Any

import numpy as np
import pytest
import torch

from scancheck.case import Case, make_case
from scancheck.checks.oracle import CaseReport, Request, check_case
from scancheck.contract import Contract
from scancheck.errors import CaseInvalid
from scancheck.gate.ahead import case_reports
from scancheck.kernel import Kernel
from scancheck.ops.normal_form import Op
from scancheck.recipes.inputs import Inputs
from scancheck.runner import Outcome, execute
from scancheck.runner.poison import filling_byte, memory_filled_with

REQUEST = Request(contract=Contract(), gradients=True)


def scan(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """h, step by step."""
    rows = [b[:, 0]]
    for t in range(1, b.shape[1]):
        rows.append(a[:, t] * rows[-1] + b[:, t])
    return torch.stack(rows, 1)


HERE = Kernel(name="tried", op="linear_scan", call=scan)


class Elsewhere:
    """Another process's place, and what it was asked."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.bytes: list[int] = []
        self.second = Event()  # the second call has begun
        self.refused: int | None = None

    def __call__(
        self,
        op: Op,
        inputs: Inputs,
        dtype: str,
        *,
        cotangents: Mapping[str, Any] | None,
        runs: int,
    ) -> Outcome:
        assert current_thread() is not main_thread()
        steps = inputs.tensors["b"].shape[1]
        if steps == self.refused:
            raise CaseInvalid("cannot be called on this")
        self.steps.append(steps)
        self.bytes.append(filling_byte())
        if len(self.steps) == 2:
            self.second.set()
        return execute(HERE, op, inputs, dtype, cotangents=cotangents, runs=runs)


def asked(*lengths: int) -> list[tuple[Case, str | None]]:
    """Cases of these lengths, the gradients of one in two judged."""
    sizes = [{"B": 1, "T": steps, "D": 3} for steps in lengths]
    cases = [make_case("linear_scan", s, recipe="gaussian_slow", seed=1) for s in sizes]
    return [(case, "dense" if n % 2 else None) for n, case in enumerate(cases)]


def told(report: CaseReport) -> Any:
    """What a report says."""
    return report.case, report.verdict, report.cotangent_kind, len(report.checks)


def test_reports_are_those_of_one_after_the_other() -> None:
    """In order, each with its own case's outcome."""
    cases = asked(5, 9, 3, 12)
    there = replace(HERE, elsewhere=Elsewhere())
    want = [check_case(HERE, c, REQUEST, cotangent_kind=k) for c, k in cases]
    for kernel in (HERE, there):
        found = list(case_reports(kernel, cases, REQUEST))
        assert [told(r) for r in found] == [told(r) for r in want]
        for left, right in zip(found, want, strict=True):
            assert np.array_equal(left.outcome.outputs["h"], right.outcome.outputs["h"])
            assert left.outcome.gradients.keys() == right.outcome.gradients.keys()


def test_the_next_call_runs_while_a_case_is_judged() -> None:
    """It has begun before the first report is there, and no further one has."""
    elsewhere = Elsewhere()
    reports = case_reports(
        replace(HERE, elsewhere=elsewhere), asked(5, 9, 3, 12), REQUEST
    )
    with memory_filled_with(0x11):
        next(reports)
    assert elsewhere.second.wait(10.0)
    reports.close()
    assert elsewhere.steps == [5, 9]
    assert elsewhere.bytes == [0x11, 0x11]


def test_what_a_call_raises_comes_in_its_turn() -> None:
    """The cases before are judged, those after are not called."""
    elsewhere = Elsewhere()
    elsewhere.refused = 9
    reports = case_reports(
        replace(HERE, elsewhere=elsewhere), asked(5, 9, 3, 12), REQUEST
    )
    assert next(reports).verdict == "PASS"
    with pytest.raises(CaseInvalid, match="cannot be called"):
        next(reports)
    assert 12 not in elsewhere.steps


def test_no_case_gives_no_report() -> None:
    """Neither here nor there."""
    for kernel in (HERE, replace(HERE, elsewhere=Elsewhere())):
        assert list(case_reports(kernel, [], REQUEST)) == []
