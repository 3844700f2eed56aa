"""What a result was computed with: versions, processor, and switches that round."""

import os
import platform
import re
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

from scancheck import __version__

PACKAGES = (
    "numpy",
    "torch",
    "numba",
    "mpmath",
    "python-flint",
    "accelerated-scan",
    "jax",
    "mamba-ssm",
    "mambapy",
    "mlstm_kernels",
    "fla-core",
    "triton",
    "transformers",
)
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def describe(*, full: bool = False) -> dict[str, str]:
    """The environment as short texts by name, in a fixed order.

    torch's own settings and devices are told when torch is loaded already; with `full`
    it is loaded for that. A package that is missing is "not installed".
    """
    known = {
        "scancheck": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _processor(),
        "cores": str(os.cpu_count() or "unknown"),
    }
    known |= {package: _version(package) for package in PACKAGES}
    known["cupy"] = _cupy()
    if full or "torch" in sys.modules:
        known |= _torch_settings()
    return known


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    """The processor's marketing name where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _torch_settings() -> dict[str, str]:
    """Threads, devices, and what lets torch compute in less than it stores."""
    import torch

    settings = {
        "torch_threads": str(torch.get_num_threads()),
        "torch_float32_matmul": _told(torch.get_float32_matmul_precision),
        "torch_deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "cuda_device": "none",
        "cuda_driver": _driver(),
        "cuda": str(torch.version.cuda or "torch is built without it"),
    }
    if torch.cuda.is_available():
        matmul = torch.backends.cuda.matmul
        settings |= {
            "cuda_device": "; ".join(map(_device, range(torch.cuda.device_count()))),
            "cudnn_tf32": _told(lambda: torch.backends.cudnn.allow_tf32),
            "fp16_reduction": str(matmul.allow_fp16_reduced_precision_reduction),
            "bf16_reduction": str(matmul.allow_bf16_reduced_precision_reduction),
        }
    return settings


def _told(setting: Callable[[], object]) -> str:
    """The setting; torch refuses the old name of a mode that was set by a newer one."""
    try:
        return str(setting())
    except RuntimeError:
        return "set by fp32_precision"


def _device(index: int) -> str:
    """Name and architecture of a CUDA device."""
    import torch

    major, minor = torch.cuda.get_device_capability(index)
    return f"{torch.cuda.get_device_name(index)} (sm_{major}{minor})"


def _driver() -> str:
    """The version of NVIDIA's kernel driver where Linux tells it."""
    try:
        text = NVIDIA_DRIVER.read_text(encoding="utf-8")
    except OSError:
        return "none found"
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", text)
    return found[1] if found else "unknown"


def _cupy() -> str:
    """Version and name of CuPy's distribution, of which there is one for each CUDA."""
    for distribution in distributions():
        name = str(distribution.metadata["Name"])
        if name == "cupy" or name.startswith("cupy-cuda"):
            return f"{distribution.version} ({name})"
    return "not installed"
