"""The server of kernels' processes starts early for CUDA, and with what they need."""

import multiprocessing
from multiprocessing import forkserver
from typing import Any

import pytest

from scancheck.kernel_server import FOR_JUDGING, FOR_ONE_KERNEL, start_for_cuda
from scancheck.kernels.cuda import toolkit
from scancheck.runner import own_process


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was imported by each server that would have been started."""
    found: list[Any] = []
    chosen: list[Any] = []
    monkeypatch.setattr(toolkit, "unavailable", lambda: None)
    monkeypatch.setattr(multiprocessing, "set_forkserver_preload", chosen.extend)
    monkeypatch.setattr(
        forkserver, "ensure_running", lambda: found.append(tuple(chosen))
    )
    return found


@pytest.mark.parametrize(
    ("target", "device", "starts"),
    [
        ("cuda.linear_scan.single_pass.plain", None, True),
        ("my_scan.py:scan", "cuda", True),
        ("my_scan.py:scan", "cuda:1", True),
        ("my_scan.py:scan", None, False),
        ("model.linear_scan.sequential.plain", None, False),
        ("cuda_scan.py:scan", "cpu", False),
    ],
)
def test_it_starts_for_cuda_alone(
    started: list[Any], target: str, device: str | None, starts: bool
) -> None:
    """With what the kernel's process imports, so that it is the same server."""
    start_for_cuda(target, device)
    assert started == ([FOR_ONE_KERNEL + FOR_JUDGING] if starts else [])
    assert own_process.FOR_ONE_KERNEL is FOR_ONE_KERNEL


@pytest.mark.parametrize(
    ("module", "name", "told"),
    [
        (multiprocessing, "get_all_start_methods", ["spawn"]),
        (toolkit, "unavailable", "no CUDA driver is installed"),
    ],
)
def test_it_does_not_start_where_it_cannot_be_used(
    started: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    told: object,
) -> None:
    """Without such servers on the platform, or without a device."""
    monkeypatch.setattr(module, name, lambda: told)
    start_for_cuda("my_scan.py:scan", "cuda")
    assert started == []
