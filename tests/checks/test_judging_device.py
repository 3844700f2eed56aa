"""Where cases are judged: on the kernel's device, or on the CPU with the reason."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from scancheck.campaign.judging import Judge
from scancheck.campaign.trial import Trial
from scancheck.checks import judging_device as judging
from scancheck.checks import oracle, related
from scancheck.checks.judging_device import judged_on, judging_device
from scancheck.checks.oracle import Request, check_case
from scancheck.checks.related import subject_of
from scancheck.contract import Contract
from scancheck.errors import KernelUnavailable
from scancheck.gate import loop
from scancheck.gate.loop import Judging
from scancheck.kernel import Kernel
from scancheck.ops import op_named
from scancheck.ops.normal_form import Op
from scancheck.recipes.build import build
from scancheck.recipes.inputs import Inputs
from scancheck.record import RunRecord
from scancheck.report.text import explain
from scancheck.runner import Outcome, execute

FAILURES = (
    type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"}),
    type("CUDARuntimeError", (RuntimeError,), {"__module__": "cupy_backends.cuda.api"}),
    KernelUnavailable,
    ImportError,
)


@pytest.fixture(autouse=True)
def _a_usable_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with CuPy and a CUDA device."""
    monkeypatch.setattr(judging, "unavailable", lambda: None)
    monkeypatch.setattr(judging, "is_lost", lambda device: False)
    monkeypatch.setattr(oracle, "CARD_ENTRIES", 0)


def on_cuda(call: Any) -> Kernel:
    """A kernel of CUDA, as the judging process sees it; it is executed here."""
    here = Kernel(name="tried", op="linear_scan", call=call, devices=("cpu",))

    def elsewhere(
        op: Op,
        inputs: Inputs,
        dtype: str,
        *,
        cotangents: Mapping[str, Any] | None,
        runs: int,
    ) -> Outcome:
        return execute(here, op, inputs, dtype, cotangents=cotangents, runs=runs)

    return replace(here, devices=("cuda",), elsewhere=elsewhere)


def judged(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    """The record of the first short cases, with gradients."""
    every = loop.case_list

    def some(*given: Any, **options: Any) -> list[Any]:
        cases = every(*given, **options)
        return [c for c in cases if 20 < dict(c.sizes)["T"] < 200][:6]

    monkeypatch.setattr(loop, "case_list", some)
    run = Judging(
        kernel=kernel,
        contract=Contract(),
        declared=False,
        profile="quick",
        gradients=True,
        require=frozenset(),
        seed=0,
        dtypes=("fp32",),
    )
    run.judge(None, None)
    return run.record(1.0, interrupted=False)


def fails(failure: type[Exception], *devices: str) -> Any:
    """A judgement that fails on a device, and the devices that it was tried on."""
    tried = list(devices)

    def judge(device: str) -> str:
        tried.append(device)
        if device != "cpu":
            raise failure("no memory is left\nat all")
        return "judged"

    return judge, tried


@pytest.mark.parametrize("failure", FAILURES)
def test_what_the_device_cannot_do_is_done_on_the_cpu(failure: type[Exception]) -> None:
    """The reason is one line, and nothing else is tried."""
    judge, tried = fails(failure)
    done = judged_on("cuda:1", judge)
    assert done.found == "judged"
    assert done.why_on_cpu == "cuda:1: no memory is left"
    assert tried == ["cuda:1", "cpu"]


def test_mistakes_of_the_checker_are_not_hidden() -> None:
    """What no device has caused is raised; the CPU's errors are its own."""
    judge, tried = fails(ValueError)
    with pytest.raises(ValueError, match="no memory"):
        judged_on("cuda:1", judge)
    assert tried == ["cuda:1"]


def test_a_lost_device_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for by name; the CPU needs no reason."""
    lost = torch.device("cuda:1")
    monkeypatch.setattr(judging, "is_lost", lambda device: device == lost)
    judge, tried = fails(ImportError)
    assert judged_on("cuda:1", judge).why_on_cpu == "cuda:1 is lost to this process"
    assert judged_on("cpu", judge).why_on_cpu is None
    assert tried == ["cpu", "cpu"]
    assert judged_on("cuda:0", judge).why_on_cpu == "cuda:0: no memory is left"


def test_a_kernel_is_judged_where_it_runs(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless CuPy cannot be used there; a kernel of the CPU needs none."""
    cuda, cpu = on_cuda(bench.scan), bench.kernel(bench.scan)
    assert judging_device(cuda) == ("cuda", None)
    monkeypatch.setattr(judging, "unavailable", lambda: "CuPy is not installed")
    assert judging_device(cuda) == ("cpu", "CuPy is not installed")
    assert judging_device(cpu) == ("cpu", None)


def test_without_cupy_the_record_says_so(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and everything else is as for a kernel of the CPU."""
    plain = judged(bench.kernel(bench.scan), monkeypatch)
    monkeypatch.setattr(judging, "unavailable", lambda: "CuPy is not installed")
    record = judged(on_cuda(bench.scan), monkeypatch)
    assert record.judged_on_cpu == ("CuPy is not installed",)
    assert "judged on the CPU: CuPy is not installed" in explain(record)
    assert plain.judged_on_cpu == ()
    assert "judged on the CPU" not in explain(plain)
    assert (record.counts, record.worst_ratio) == (plain.counts, plain.worst_ratio)


def test_a_device_that_fails_costs_no_verdict(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a right kernel and of a wrong one, and the reason is told once."""

    def fails_there(*given: Any, device: str = "cpu", **options: Any) -> Any:
        if device != "cpu":
            raise FAILURES[1]("cudaErrorIllegalAddress")
        return budget_for(*given, device=device, **options)

    budget_for = oracle.budget_for
    for call in (bench.scan, lambda a, b: bench.scan(a * 0.9, b)):
        monkeypatch.setattr(oracle, "budget_for", budget_for)
        plain = judged(bench.kernel(call), monkeypatch)
        monkeypatch.setattr(oracle, "budget_for", fails_there)
        record = judged(on_cuda(call), monkeypatch)
        assert record.judged_on_cpu == ("cuda: cudaErrorIllegalAddress",)
        assert record.counts == plain.counts
        assert record.worst_ratio == plain.worst_ratio
        assert record.verdict == plain.verdict
        told = [(f.cause, f.verdict, f.tensor) for f in plain.findings]
        assert [(f.cause, f.verdict, f.tensor) for f in record.findings] == told


def test_a_campaign_judges_there_too(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says why where it does not."""
    kernel, trial = on_cuda(bench.scan), Trial(case=bench.case(T=40))
    devices = []
    certify = oracle.certify

    def seen(*given: Any, device: str, **options: Any) -> Any:
        devices.append(device)
        if device != "cpu":
            raise FAILURES[0]("no memory")
        return certify(*given, **options)

    monkeypatch.setattr(oracle, "certify", seen)
    monkeypatch.setattr(oracle, "budget_for", on_any_device(oracle.budget_for))
    there = Judge(kernel, Contract(), gradients=False).judge(trial)
    assert devices == ["cuda", "cpu"]
    assert there.why_on_cpu == "cuda: no memory"
    monkeypatch.setattr(judging, "unavailable", lambda: "CuPy is not installed")
    here = Judge(kernel, Contract(), gradients=False).judge(trial)
    assert devices[2:] == ["cpu"]
    assert here.why_on_cpu == "CuPy is not installed"
    assert here.verdict == there.verdict == "PASS"


def on_any_device(function: Any) -> Any:
    """The function, computed on the CPU whatever device is asked for."""
    return lambda *given, device="cpu", **options: function(*given, **options)


@pytest.mark.parametrize("form", ["a", "g"])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_case_is_judged_alike_on_both(
    bench: Any, card: str, form: str, wrong: bool, judged_alike: Any
) -> None:
    """Verdicts and their reasons are the same, ratios within the certificates."""
    factor = 0.99 if wrong else 1.0

    def scan(a: Any = None, g: Any = None, b: Any = None) -> Any:
        decays = torch.exp(g.double()).float() if a is None else a
        return bench.scan(decays * factor, b)

    kernel = on_cuda(scan)
    reports = []
    case = bench.case(T=67, D=16, form=form)
    for device in ("cpu", "cuda"):
        request = Request(contract=Contract(), gradients=True, device=device)
        reports.append(check_case(kernel, case, request, cotangent_kind="dense"))
    here, there = reports
    assert there.why_on_cpu is None
    assert (here.verdict != "PASS") is wrong
    judged_alike(here, there)


def test_relations_are_judged_there_too(
    bench: Any, card: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What judges a sequence cut anywhere is that of the CPU, within the radii."""
    devices = []

    def seen(function: Any) -> Any:
        def called(*given: Any, device: str) -> Any:
            devices.append(device)
            return function(*given, device=device)

        return called

    for name in ("budget_for", "certify"):
        monkeypatch.setattr(related, name, seen(getattr(related, name)))
    kernel, op = on_cuda(bench.scan), op_named("linear_scan")
    case = bench.case(T=67)
    request = Request(contract=Contract())
    here, there = (
        subject_of(kernel, op, case, build(case), replace(request, device=device))
        for device in ("cpu", "cuda")
    )
    assert devices == ["cpu", "cpu", "cuda", "cuda"]
    assert here.whole.why_on_cpu is there.whole.why_on_cpu is None
    for name, left in here.truth.outputs.items():
        right = there.truth.outputs[name]
        assert (np.abs(left.hi - right.hi) <= left.radius + right.radius).all()
        assert left.certified.all()
        assert right.certified.all()
    for name, allowance in here.budget.outputs.items():
        other = there.budget.outputs[name]
        if card == "host":
            assert np.array_equal(allowance.error, other.error)
        else:  # as tests/bounds/test_card.py
            np.testing.assert_allclose(allowance.error, other.error, rtol=1e-11)
