"""The device that is asked for, and why it is not to be had."""

from typing import Any

import pytest
import torch

from scancheck.errors import CaseInvalid, DeviceLost, KernelUnavailable
from scancheck.kernel import Kernel
from scancheck.runner import device as devices
from scancheck.runner.attempt import is_device_error
from scancheck.runner.device import CPU, device_for, is_lost, why_no_cuda
from scancheck.runner.device_memory import free_blocks
from scancheck.runner.execute import check_not_lost


def kernel(*where: str) -> Kernel:
    """A kernel that runs on these kinds of devices, or on the usual ones."""
    given: dict[str, Any] = {"devices": where} if where else {}
    return Kernel(name="k.py:scan", op="linear_scan", call=lambda a, b: b, **given)


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with two CUDA devices."""
    monkeypatch.setattr(devices, "why_no_cuda", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_the_default_is_the_first_of_the_kernel(two_devices: None) -> None:
    """A callable runs on the CPU, a kernel of CUDA alone there."""
    assert device_for(kernel(), None) == "cpu"
    assert device_for(kernel("cuda"), None) == "cuda:0"


@pytest.mark.parametrize(
    ("asked", "used"),
    [("cpu", "cpu"), ("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:1")],
)
def test_a_device_by_name(two_devices: None, asked: str, used: str) -> None:
    """CUDA without a number is the first device."""
    assert device_for(kernel(), asked) == used


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA", ""])
def test_a_name_of_no_device(two_devices: None, name: str) -> None:
    """The message says what names there are."""
    with pytest.raises(CaseInvalid, match="expected cpu, cuda or cuda:N; got"):
        device_for(kernel(), name)


def test_a_device_that_the_kernel_does_not_run_on(two_devices: None) -> None:
    """It is told where the kernel runs."""
    with pytest.raises(CaseInvalid, match=r"k.py:scan runs on cpu; got cuda:1"):
        device_for(kernel("cpu"), "cuda:1")
    with pytest.raises(CaseInvalid, match="runs on cuda; got cpu"):
        device_for(kernel("cuda"), "cpu")


def test_a_device_that_is_not_there(
    two_devices: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too large a number names those that are there; without any the reason is told."""
    with pytest.raises(KernelUnavailable, match="torch sees cuda:0 to cuda:1 here"):
        device_for(kernel(), "cuda:2")
    monkeypatch.setattr(devices, "why_no_cuda", lambda: "no driver")
    with pytest.raises(KernelUnavailable, match="cannot run on cuda: no driver"):
        device_for(kernel(), "cuda")


def test_why_there_is_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build without CUDA, a driver's complaint, or no device; each in one line."""
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without CUDA" in str(why_no_cuda())
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def complains() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old.\nUpdate it.")

    monkeypatch.setattr(torch.cuda, "init", complains)
    assert why_no_cuda() == "The NVIDIA driver on your system is too old"
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    assert why_no_cuda() == "torch sees no CUDA device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert why_no_cuda() is None


def test_a_device_is_lost_when_its_error_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is told once passes; the CPU is never lost."""
    errors = iter([RuntimeError("CUDA error: invalid configuration argument"), None])

    def once(device: torch.device) -> None:
        if (error := next(errors)) is not None:
            raise error

    def always(device: torch.device) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    assert not is_lost(CPU)
    cuda = torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "synchronize", once)
    assert not is_lost(cuda)
    monkeypatch.setattr(torch.cuda, "synchronize", always)
    assert is_lost(cuda)
    with pytest.raises(DeviceLost, match="cuda:0 is lost to this process since"):
        check_not_lost("cuda:0")


def test_errors_of_the_device_are_told_from_those_of_code() -> None:
    """By torch's text and class, and CuPy's module."""
    cupy_error = type("CUDARuntimeError", (RuntimeError,), {})
    cupy_error.__module__ = "cupy_backends.cuda.api.runtime"
    assert is_device_error(RuntimeError("CUDA error: misaligned address"))
    assert is_device_error(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_device_error(cupy_error("cudaErrorIllegalAddress"))
    assert not is_device_error(RuntimeError("expected a CUDA tensor"))
    assert not is_device_error(ValueError("CUDA error: quoted"))


def test_free_blocks_are_those_that_nobody_waits_for() -> None:
    """Of this device, and of no CUDA graph; each with its address and size."""

    def segment(device: int, pool: tuple[int, int], *states: str) -> dict[str, Any]:
        blocks = [
            {"address": 4096 * device + 512 * n, "size": 512, "state": state}
            for n, state in enumerate(states)
        ]
        return {"device": device, "segment_pool_id": pool, "blocks": blocks}

    snapshot = [
        segment(0, (0, 0), "inactive"),
        segment(
            1, (0, 0), "active_allocated", "inactive", "active_pending_free", "inactive"
        ),
        segment(1, (0, 3), "inactive"),
    ]
    assert list(free_blocks(snapshot, 1)) == [(4608, 512), (5632, 512)]
    del snapshot[0]["segment_pool_id"]  # older torch has no such key
    assert list(free_blocks(snapshot, 0)) == [(0, 512)]
