"""What a result was computed with: versions, processor, and switches that round."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
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
    "mambapy",
)


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
        "torch_float32_matmul": torch.get_float32_matmul_precision(),
        "torch_deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "cuda_device": "none",
    }
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        matmul = torch.backends.cuda.matmul
        settings |= {
            "cuda_device": f"{torch.cuda.get_device_name()} (sm_{major}{minor})",
            "cuda": str(torch.version.cuda),
            "cudnn_tf32": str(torch.backends.cudnn.allow_tf32),
            "fp16_reduction": str(matmul.allow_fp16_reduced_precision_reduction),
            "bf16_reduction": str(matmul.allow_bf16_reduced_precision_reduction),
        }
    return settings
