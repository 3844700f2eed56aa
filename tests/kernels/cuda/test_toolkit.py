"""Why CUDA cannot be used here is one line that says what to do."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from scancheck.kernels.cuda import toolkit


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing remembered, and every device visible."""
    for name in (
        "unavailable",
        "compiler_unavailable",
        "device_unavailable",
        "capabilities",
        "include_directory",
    ):
        monkeypatch.setattr(toolkit, name, getattr(toolkit, name).__wrapped__)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def filled_in(*values: int) -> Callable[..., int]:
    """A C function that writes to its last pointers and succeeds."""

    def call(*arguments: Any) -> int:
        for argument, value in zip(arguments[-len(values) :], values, strict=True):
            argument._obj.value = value
        return 0

    return call


def machine(
    monkeypatch: pytest.MonkeyPatch,
    *,
    driver: int | None = 13000,
    devices: int = 1,
    capability: tuple[int, int] = (9, 0),
    cupy: int | None = 13,
) -> str | None:
    """The reason on a machine with such a driver and such devices."""
    libraries = {
        "libcuda.so.1": driver
        and SimpleNamespace(cuDriverGetVersion=filled_in(driver)),
        "libnvidia-ml.so.1": SimpleNamespace(
            nvmlInit_v2=lambda: 0,
            nvmlShutdown=lambda: 0,
            nvmlDeviceGetCount_v2=filled_in(devices),
            nvmlDeviceGetHandleByIndex_v2=lambda index, device: 0,
            nvmlDeviceGetCudaComputeCapability=filled_in(*capability),
        ),
    }
    monkeypatch.setattr(toolkit, "_library", libraries.get)
    monkeypatch.setattr(toolkit, "_cupy_release", lambda: cupy)
    monkeypatch.setattr(toolkit, "compiler_unavailable", lambda: None)
    monkeypatch.setattr(toolkit, "_torch_unavailable", lambda: None)
    return toolkit.unavailable()


def test_capable_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a driver and a device there is no reason."""
    assert machine(monkeypatch) is None
    assert machine(monkeypatch, capability=(8, 0)) is None


@pytest.mark.parametrize(
    ("lacks", "words"),
    [
        ({"driver": None}, "no CUDA driver is installed"),
        ({"driver": 12040}, "for CUDA up to 12, and CuPy for CUDA 13: update the dr"),
        ({"devices": 0}, "there is no CUDA device"),
        ({"capability": (7, 5)}, "no CUDA device has compute capability 8.0 or newer"),
    ],
)
def test_what_a_machine_lacks(
    monkeypatch: pytest.MonkeyPatch, lacks: dict[str, Any], words: str
) -> None:
    """An absent or old driver, no device and an old one are told apart."""
    reason = machine(monkeypatch, **lacks)
    assert reason is not None and words in reason
    assert "\n" not in reason


def test_capabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of device once, and none where there is no device."""
    machine(monkeypatch, devices=3, capability=(9, 0))
    assert toolkit.capabilities() == ((9, 0),)
    machine(monkeypatch, devices=0)
    assert toolkit.capabilities() == ()
    monkeypatch.setattr(toolkit, "_library", lambda name: None)
    assert toolkit.capabilities() == ()


def test_hidden_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_VISIBLE_DEVICES that names none is told."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES hides" in str(machine(monkeypatch))


def test_a_device_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What CuPy needs of a driver is no reason for those who do without it."""
    assert machine(monkeypatch, driver=12040, cupy=13) is not None
    assert toolkit.device_unavailable() is None
    machine(monkeypatch, devices=0)
    assert toolkit.device_unavailable() == "there is no CUDA device"


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CuPy, or without headers, the reason says what to install."""
    monkeypatch.setattr(toolkit, "find_spec", lambda name: None)
    assert toolkit.compiler_unavailable() == f"CuPy is not installed; {toolkit.INSTALL}"
    monkeypatch.setattr(toolkit, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setattr(toolkit, "include_directory", lambda: None)
    assert "cuda_bf16.h" in str(toolkit.compiler_unavailable())


def test_torch_without_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """torch for CPUs alone is a reason of its own."""
    origin = tmp_path / "__init__.py"
    monkeypatch.setattr(
        toolkit, "find_spec", lambda name: SimpleNamespace(origin=str(origin))
    )
    assert toolkit._torch_unavailable() == "torch is installed without CUDA"
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libtorch_cuda.so").touch()
    assert toolkit._torch_unavailable() is None
