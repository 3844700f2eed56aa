"""Whether CUDA kernels can run or be compiled here, and where the CUDA headers are.

Told from installed versions, the driver's library and NVML alone: nothing here imports
CuPy or torch, and no CUDA context comes into being, so that processes may still fork.
"""

import ctypes
import os
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

INSTALL = "pip install 'scancheck[cuda]'"
OLDEST_CAPABILITY = (8, 0)
"""bf16 arithmetic and what the sources take for granted begin with sm_80."""

_CUPY_PACKAGES = ("cupy-cuda13x", "cupy-cuda12x")
_NEEDED_HEADERS = ("cuda_fp16.h", "cuda_bf16.h")


@cache
def unavailable() -> str | None:
    """Why CUDA kernels cannot run here, in one line, or None."""
    return (
        compiler_unavailable()
        or _torch_unavailable()
        or _device_unavailable(_cupy_release())
    )


@cache
def device_unavailable() -> str | None:
    """Why torch can use no CUDA device here, in one line, or None; torch stays out."""
    return _torch_unavailable() or _device_unavailable(None)


@cache
def capabilities() -> tuple[tuple[int, int], ...]:
    """The compute capabilities of the CUDA devices here, each once."""
    return tuple(sorted({told for told in _told_capabilities() or () if told}))


@cache
def compiler_unavailable() -> str | None:
    """Why CUDA sources cannot be compiled here, device or not, or None."""
    if find_spec("cupy") is None or find_spec("cupy_backends") is None:
        return f"CuPy is not installed; {INSTALL}"
    if include_directory() is None:
        return f"the CUDA headers ({', '.join(_NEEDED_HEADERS)}) are missing; {INSTALL}"
    return None


@cache
def include_directory() -> Path | None:
    """The folder of the CUDA headers: of an installed wheel, else of a toolkit."""
    for folder in _include_directories():
        if all((folder / header).is_file() for header in _NEEDED_HEADERS):
            return folder
    return None


def _include_directories() -> list[Path]:
    wheels = find_spec("nvidia")
    roots = list(wheels.submodule_search_locations or ()) if wheels else []
    folders = [
        Path(root) / package / "include"
        for root in roots
        for package in ("cu13", "cuda_runtime")
    ]
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if path := os.environ.get(variable):
            folders.append(Path(path) / "include")
    return [*folders, Path("/usr/local/cuda/include")]


def _cupy_release() -> int | None:
    """The CUDA release CuPy is built for; None where its package does not say."""
    for package in _CUPY_PACKAGES:
        try:
            version(package)
        except PackageNotFoundError:
            continue
        return int(re.sub(r"\D", "", package))
    return None


def _torch_unavailable() -> str | None:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return "torch is not installed"
    if not (Path(spec.origin).parent / "lib" / "libtorch_cuda.so").is_file():
        return "torch is installed without CUDA"
    return None


def _device_unavailable(needed: int | None) -> str | None:
    """As `unavailable`, for a driver of at least the CUDA release `needed`."""
    driver = _library("libcuda.so.1")
    if driver is None:
        return "no CUDA driver is installed"
    reported = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(reported)) != 0:
        return "the CUDA driver does not tell its version"
    newest = reported.value // 1000
    if needed is not None and newest < needed:
        return (
            f"the CUDA driver is for CUDA up to {newest}, and CuPy for CUDA {needed}: "
            f"update the driver or install CuPy for CUDA {newest}"
        )
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every CUDA device"
    return _no_device()


def _no_device() -> str | None:
    found = _told_capabilities()
    if found is None:
        return "the NVIDIA driver does not answer (NVML)"
    if not found:
        return "there is no CUDA device"
    # A device that does not tell is tried: a launch says what is wrong with it.
    capable = any(told is None or told >= OLDEST_CAPABILITY for told in found)
    return None if capable else _too_old()


def _told_capabilities() -> list[tuple[int, int] | None] | None:
    """What each device tells of itself, or None where the driver does not answer."""
    nvml = _library("libnvidia-ml.so.1")
    if nvml is None or nvml.nvmlInit_v2() != 0:
        return None
    found: list[tuple[int, int] | None] = []
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        for index in range(count.value):
            device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) != 0:
                continue
            known = nvml.nvmlDeviceGetCudaComputeCapability(
                device, ctypes.byref(major), ctypes.byref(minor)
            )
            found.append((major.value, minor.value) if known == 0 else None)
    finally:
        nvml.nvmlShutdown()
    return found


def _too_old() -> str:
    major, minor = OLDEST_CAPABILITY
    return f"no CUDA device has compute capability {major}.{minor} or newer"


def _library(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None
