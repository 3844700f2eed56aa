"""What is told about the environment, and what is not loaded for it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from scancheck import __version__, environment
from scancheck.environment import PACKAGES, describe

ROOT = Path(__file__).parents[1]


def test_versions_are_those_of_the_loaded_packages() -> None:
    """Installed versions agree with what the packages say themselves."""
    known = describe(full=True)
    assert known["scancheck"] == __version__
    assert known["numpy"] == np.__version__
    assert known["torch"] == torch.__version__
    assert known["torch_threads"] == str(torch.get_num_threads())
    assert known["torch_float32_matmul"] == torch.get_float32_matmul_precision()
    assert set(PACKAGES) <= set(known)


def test_every_value_is_a_short_text() -> None:
    """All values are single lines with something in them."""
    for value in describe(full=True).values():
        assert value.strip()
        assert "\n" not in value


def test_description_loads_no_torch() -> None:
    """Without `full`, torch is told by version alone; with it, the settings follow."""
    program = (
        "import sys\n"
        "from scancheck.environment import describe\n"
        "short = describe()\n"
        "assert not {'torch', 'numba', 'numpy'} & set(sys.modules)\n"
        "assert 'torch' in short and 'torch_threads' not in short\n"
        "full = describe(full=True)\n"
        "assert list(full)[: len(short)] == list(short)\n"
        "assert 'torch_threads' in full and 'cuda_device' in full\n"
        "assert describe() == full\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_driver_and_cupy_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The driver's version from Linux, CuPy's with the CUDA that it is for."""
    assert {"cupy", "cuda_device", "cuda_driver", "cuda"} <= set(describe(full=True))
    version = tmp_path / "version"
    monkeypatch.setattr(environment, "NVIDIA_DRIVER", version)
    assert describe(full=True)["cuda_driver"] == "none found"
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release\n"
        "GCC version:  gcc version 12.3.0\n"
    )
    assert describe(full=True)["cuda_driver"] == "580.95.05"


def test_precision_set_by_its_newer_name_is_told() -> None:
    """torch then refuses to tell it by the older one, which is no failure."""
    backends = torch.backends
    if not hasattr(backends, "fp32_precision"):
        pytest.skip("needs torch 2.9")
    before = backends.cuda.matmul.fp32_precision
    backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert describe()["torch_float32_matmul"] == "set by fp32_precision"
    finally:
        backends.cuda.matmul.fp32_precision = before
