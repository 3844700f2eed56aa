"""Verdicts on CUDA kernels: a fault in one call costs that call."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scancheck.campaign import shrink
from scancheck.campaign.finding_file import read_finding
from scancheck.case import Case
from scancheck.errors import KernelUnavailable
from scancheck.gate import loop, verify
from scancheck.gate.fuzz import fuzz
from scancheck.gate.replay import replay
from scancheck.ops import op_named
from scancheck.recipes.inputs import Inputs
from scancheck.registry import loader, resolve_target
from scancheck.runner import execute
from scancheck.runner.own_process import in_own_process

pytestmark = pytest.mark.gpu

# Verdicts in a process that loses its device, and what that process does next.
LOSES_THE_DEVICE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("own", sys.argv[1])
own = importlib.util.module_from_spec(spec)
spec.loader.exec_module(own)
own.STEPS = 300
from scancheck.errors import DeviceLost
from scancheck.gate import verify
lost = verify(own.faults, op="linear_scan", device="cuda")
print(lost.record.verdict, lost.record.counts.get("PASS", 0) > 0, flush=True)
print(lost.explain(), flush=True)
try:
    verify(own.scan, op="linear_scan", device="cuda")
except DeviceLost as error:
    print("DeviceLost", error, flush=True)
import os
os._exit(0)
"""


@pytest.fixture(autouse=True)
def _few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the quick profile, some cases below 65 tokens and some above."""
    every = loop.case_list

    def some(*given: Any, **options: Any) -> list[Case]:
        steps = [(dict(c.sizes)["T"], c) for c in every(*given, **options)]
        short = [c for t, c in steps if 0 < t <= 64]
        return short[:8] + [c for t, c in steps if 64 < t <= 300][:3]

    monkeypatch.setattr(loop, "case_list", some)


@pytest.mark.parametrize("gradients", [False, True])
def test_a_right_kernel_passes(kernel_file: Path, gradients: bool) -> None:
    """The verdict is PASS, and the record names the device."""
    result = verify(
        f"{kernel_file}:scan", op="linear_scan", device="cuda", gradients=gradients
    )
    assert result, result.explain()
    assert result.record.device == "cuda:0"
    assert "on cuda:0" in result.explain()
    assert "--device cuda:0" in result.record.replay


@pytest.mark.parametrize(
    ("name", "told"),
    [("faults", "CUDA error: an illegal memory access"), ("asserts", "CUDA error: ")],
)
def test_a_fault_costs_one_case(kernel_file: Path, name: str, told: str) -> None:
    """It is an ERROR that tells what the device told; the others are judged."""
    if name == "faults":
        pytest.importorskip("cupy", reason="CuPy makes the fault")
    result = verify(f"{kernel_file}:{name}", op="linear_scan", device="cuda")
    record = result.record
    assert record.verdict == "ERROR"
    assert record.counts["PASS"] >= 8
    assert record.counts["ERROR"] >= 3
    assert set(record.counts) == {"PASS", "ERROR"}, result.explain()
    call = next(f for f in record.findings if f.check == "call")
    assert told in call.reason
    assert torch.ones(1, device="cuda").item() == 1.0


def test_an_object_that_loses_the_device_ends_its_run(kernel_file: Path) -> None:
    """What was judged before is kept; a later run says why there is none."""
    pytest.importorskip("cupy", reason="CuPy makes the fault")
    done = subprocess.run(
        [sys.executable, "-c", LOSES_THE_DEVICE, str(kernel_file)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.startswith("ERROR True\n"), done.stdout + done.stderr
    assert "was lost" in done.stdout
    assert "DeviceLost cuda:0 is lost to this process since" in done.stdout


def test_a_kernel_that_does_not_come_back_is_ended(kernel_file: Path) -> None:
    """Its call is an ERROR after the time limit, and the next one has its outputs."""
    pytest.importorskip("cupy", reason="CuPy makes it spin")
    target, op = f"{kernel_file}:spins", op_named("linear_scan")
    (kernel,) = resolve_target(target, op.name)
    with in_own_process(kernel, loader(target, op.name, "cuda:0"), limit_s=2.0) as own:
        found = []
        for steps in (10, 70, 10):
            values = np.full((1, steps, 2), 0.5)
            given = Inputs(tensors={"a": values, "b": values}, switches={})
            found.append(execute(own, op, given, "fp32", runs=1))
    problems = [outcome.problem for outcome in found]
    assert problems[0] is None
    assert problems[2] is None
    assert problems[1] is not None
    assert problems[1].kind == "hung"
    assert "did not return within 2 s" in problems[1].message


def test_unwritten_memory_is_named(kernel_file: Path) -> None:
    """The diagnosis tells it from an overflow, by way of the kernel's process."""
    result = verify(f"{kernel_file}:unwritten", op="linear_scan", device="cuda")
    assert result.verdict == "NONFINITE"
    assert "unwritten" in {f.cause for f in result.record.findings}


def test_a_race_is_named(kernel_file: Path) -> None:
    """Bits that differ between identical runs are a finding of their own."""
    result = verify(f"{kernel_file}:races", op="linear_scan", device="cuda")
    assert "nondeterministic" in {f.cause for f in result.record.findings}


def test_a_device_that_is_not_there_is_told() -> None:
    """The message says which there are."""
    count = torch.cuda.device_count()
    with pytest.raises(KernelUnavailable, match=r"torch sees cuda:0"):
        verify(lambda a, b: b, op="linear_scan", device=f"cuda:{count}")


def test_a_campaign_survives_faults(
    kernel_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its finding is kept with the device, and replayed there."""
    pytest.importorskip("cupy", reason="CuPy makes the fault")
    # Each fault costs a process, which takes seconds to start again.
    monkeypatch.setattr(shrink, "MOST_SECONDS", 5.0)
    target = f"{kernel_file}:faults"
    result = fuzz(
        target,
        op="linear_scan",
        cases=12,
        workers=1,
        device="cuda",
        output=tmp_path,
    )
    assert result.record.counts["PASS"] > 0
    (finding,) = [f for f in result.record.findings if f.cause == "call"]
    assert "CUDA error" in finding.reason
    assert finding.file is not None
    assert read_finding(Path(finding.file)).campaign["device"] == "cuda:0"
    again = replay(finding.file, target)
    assert again.record.device == "cuda:0"
    assert again.exit_code == 1
    assert json.loads((tmp_path / "run.json").read_text())["device"] == "cuda:0"
