"""The precision report on a device: a tiny sweep of two kernels."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from scancheck.kernels.cuda import catalog as cuda
from scancheck.kernels.cuda.toolkit import unavailable
from scancheck.report import command
from scancheck.report.device_errors import device_lines, kernel_lines
from scancheck.study import device_plan
from scancheck.study.store import read_study

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
]
NAMES = (
    "cuda.linear_scan.single_pass.plain",
    "cuda.linear_scan.single_pass.fast",
    "cuda.selective_scan.sequential.reproducible",
)


def test_a_tiny_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels pass on the device; those with a model of their own have its bits."""
    tiny = device_plan.DeviceSweep(
        steps=(300,),
        rho_steps=300,
        exact_steps={"linear_scan": (300,), "selective_scan": (300,)},
        gradient_steps=(100,),
        gradient_recipes=("gaussian_slow",),
    )
    kept = tuple(kernel for kernel in cuda.kernels() if kernel.name in NAMES)
    monkeypatch.setitem(device_plan.DEVICE_SWEEPS, "quick", tiny)
    monkeypatch.setattr(cuda, "kernels", lambda: kept)
    monkeypatch.setattr(command, "_workers", lambda: 1)
    console = Console(file=io.StringIO())
    assert command.report(tmp_path, "quick", 0, console, device="cuda") == 0
    study = read_study(tmp_path / "rows.parquet")
    assert study.device.startswith("cuda:")
    lines = kernel_lines(device_lines(study.rows))
    assert len(lines) == len(NAMES)
    for line in lines:
        assert line.passed == line.tensors > 0
        assert not line.own or line.same == line.compared > 0
    assert "CUDA kernels beside their models" in (tmp_path / "index.html").read_text()
