"""The page of a device: errors of CUDA kernels beside their models, bits and verdicts.

Kernels on the CPU stand in for those of a device: a right one with the bits of its
model, one with another exponential, and ones that are wrong.
"""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from scancheck.kernel import Kernel
from scancheck.kernels.cuda import catalog as cuda
from scancheck.kernels.models.cuda_catalog import models
from scancheck.report import command
from scancheck.report.command import report, rerender
from scancheck.report.device_errors import device_lines, device_sentences, kernel_lines
from scancheck.study import device_plan
from scancheck.study.row import Row
from scancheck.study.store import Study, read_study

OP = "cuda.linear_scan.single_pass"
MODELS = {kernel.name: kernel for kernel in models()}
Change = Callable[[torch.Tensor], torch.Tensor]


def stand_in(variant: str, change: Change = lambda h: h) -> Kernel:
    """A CUDA kernel that runs on the CPU: its reproducible model, and a change of h."""
    (kernel,) = [k for k in cuda.kernels() if k.name == f"{OP}.{variant}"]
    model = MODELS[f"model.{OP}.{variant.replace('fast', 'plain')}"]

    def call(
        *,
        g: torch.Tensor,
        b: torch.Tensor,
        initial_state: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        h, final = model.call(g=g, b=b, initial_state=initial_state)
        return change(h), final

    return replace(
        kernel, call=call, devices=("cpu",), unavailable=None, dtypes=("fp32", "bf16")
    )


def one_ulp_up(h: torch.Tensor) -> torch.Tensor:
    """The last element, moved to the next number: in fp32 within any budget."""
    if h.dtype != torch.float32:
        return h
    moved = h.detach().clone()
    up = torch.tensor(torch.inf, dtype=h.dtype)
    moved[0, -1, -1] = torch.nextafter(moved[0, -1, -1], up)
    return h + (moved - h).detach()


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Study]:
    """Sweeps kernels of the given changes by variant; leaves its page in tmp_path."""
    tiny = device_plan.DeviceSweep(
        steps=(20, 300),
        rho_steps=300,
        exact_steps={"linear_scan": (300,), "selective_scan": (300,)},
        gradient_steps=(20,),
        gradient_recipes=("regime_slow_gate",),
    )
    monkeypatch.setitem(device_plan.DEVICE_SWEEPS, "quick", tiny)
    monkeypatch.setattr(device_plan, "REGIMES", ("regime_slow_gate",))
    monkeypatch.setattr(device_plan, "usable_device", lambda asked: f"{asked}:0")
    monkeypatch.setattr(command, "_workers", lambda: 1)

    def swept(**changes: Change) -> Study:
        stood = tuple(stand_in(variant, change) for variant, change in changes.items())
        monkeypatch.setattr(cuda, "kernels", lambda: stood)
        console = Console(file=io.StringIO())
        assert report(tmp_path, "quick", 3, console, device="cuda", fresh=True) == 0
        return read_study(tmp_path / "rows.parquet")

    return swept


def same(h: torch.Tensor) -> torch.Tensor:
    """Unchanged."""
    return h


def test_bits_are_compared_with_the_model(sweep: Callable[..., Study]) -> None:
    """A kernel with its model's bits has them in all tensors, gradients too."""
    study = sweep(plain=same, fast=one_ulp_up)
    assert study.device == "cuda:0"
    plain, fast = kernel_lines(device_lines(study.rows))
    assert plain.kernel == "single_pass.plain"
    assert plain.own and not fast.own
    # h and the final state of 6 cases; with gradients of 2 more, those of g and b too.
    assert (plain.same, plain.compared) == (20, 20)
    assert (plain.passed, plain.tensors) == (20, 20)
    assert plain.times_model == 1.0
    assert fast.same < fast.compared == 20
    assert list(plain.errors) == ["slow gate (0.9999)", "gaussian_slow"]
    assert list(plain.excess) == ["bf16"]
    assert plain.rho is not None
    assert 0.9 < (plain.times_exact or 0.0) < 1.1
    text = " ".join(device_sentences(study.rows))
    assert "All 40 tensors of 2 CUDA kernels are within their budgets." in text
    assert "CPU models have them in all 20 tensors." in text
    assert "the hardware's exponential have at most 1.0" in text
    assert "linear_scan in fp32, slow gate (0.9999), 300 tokens" in text


def test_other_bits_are_told(sweep: Callable[..., Study], tmp_path: Path) -> None:
    """One element that is one ulp off is no fault of the budget, and seen."""
    study = sweep(plain=one_ulp_up)
    (line,) = kernel_lines(device_lines(study.rows))
    assert line.passed == line.tensors == 20
    assert line.same == 20 - 4  # h in fp32, and no gradient
    text = " ".join(device_sentences(study.rows))
    assert "have others in 4 of 20 tensors: linear_scan single_pass.plain" in text
    page = (tmp_path / "index.html").read_text()
    assert '<td class="number FAIL">16/20</td>' in page
    assert '<td class="FAIL">other</td>' in page


def test_a_wrong_kernel_is_red(sweep: Callable[..., Study], tmp_path: Path) -> None:
    """Its verdict is on the page, with the failure laid out, and its model's is not."""
    study = sweep(kahan=lambda h: h * 1.01)
    (line,) = kernel_lines(device_lines(study.rows))
    assert line.passed < line.tensors
    assert {row.verdict for row in study.rows if row.kernel[:5] == "model"} == {"PASS"}
    text = " ".join(device_sentences(study.rows))
    assert "of 1 CUDA kernel do not pass: linear_scan single_pass.kahan." in text
    page = (tmp_path / "index.html").read_text()
    assert "Failures, step by step" in page


def test_the_page_of_a_device(sweep: Callable[..., Study], tmp_path: Path) -> None:
    """It has the table, no answers about the built-in models, and renders again."""
    sweep(plain=same, fast=one_ulp_up)
    page = (tmp_path / "index.html").read_text()
    for words in (
        "CUDA kernels beside their models",
        "single_pass.fast",
        "scancheck report --profile quick --seed 3 --device cuda -o FOLDER",
        f"scancheck verify {OP}.plain --op linear_scan --gradients",
        "slow gate (0.9999): every kernel, format and length",
    ):
        assert words in page
    assert "Which format, variant and chunk" not in page
    again = tmp_path / "again"
    rerender(tmp_path / "rows.parquet", again, Console(file=io.StringIO()))
    assert (again / "index.html").read_text() == page


def test_another_device_is_measured_again(
    sweep: Callable[..., Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the same device are gone on from, those of another are not."""
    import scancheck.study.sweep as module

    study = sweep(plain=same)
    jobs = {row.job for row in study.rows}
    assert set(module.known_rows(study)) == jobs
    told = {"cuda_device": "another"}
    monkeypatch.setattr(module, "describe", lambda full: told)
    assert module.known_rows(study) == {}


def test_rows_without_a_device_have_no_lines(made_up: Callable[..., Row]) -> None:
    """The page of the CPU models has no word of this."""
    rows: Any = (made_up(), made_up(recipe="regime_slow_gate"))
    assert device_lines(rows) == []
    assert device_sentences(rows) == []


def test_missing_models(made_up: Callable[..., Row]) -> None:
    """A kernel whose model was not reached has its errors, and no comparison."""
    row = made_up(
        section="device", kernel=f"{OP}.plain", bits="0f", algorithm="cuda.single_pass"
    )
    (line,) = kernel_lines(device_lines([row]))
    assert (line.times_model, line.times_exact, line.compared) == (None, None, 0)
    assert device_sentences([row])
