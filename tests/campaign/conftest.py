"""Kernels of a user's own, in a file that other processes load again."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def kernel_file() -> Path:
    """The file of the kernels."""
    return Path(__file__).parents[1] / "own_kernels.py"
