"""Kernels of a user's own, in a file that other processes load again."""

from pathlib import Path

import pytest

KERNELS = '''
import ctypes
import os
import sys
import time

import torch


def scan(a, b):
    h, states = torch.zeros_like(b[:, 0], dtype=torch.float32), []
    for t in range(a.shape[1]):
        h = a[:, t].float() * h + b[:, t].float()
        states.append(h)
    return torch.stack(states, dim=1).to(b.dtype)


def forgets(a, b):
    """Drops the state after 8 tokens."""
    parts = [scan(a[:, t:t + 8], b[:, t:t + 8]) for t in range(0, a.shape[1], 8)]
    return torch.cat(parts, dim=1)


def crashes(a, b):
    if a.shape[1] > 40:
        ctypes.string_at(0)
    return scan(a, b)


def hangs(a, b):
    while a.shape[1] > 40:
        time.sleep(0.01)
    return scan(a, b)


def leaves(a, b):
    if a.shape[1] > 40:
        os._exit(7)
    return scan(a, b)


def exits(a, b):
    if a.shape[1] > 40:
        sys.exit("no device")
    return scan(a, b)


def interrupts(a, b):
    if a.shape[1] > 40:
        raise KeyboardInterrupt
    return scan(a, b)


def chatters(a, b):
    print("progress" * 1000)
    return scan(a, b)
'''


@pytest.fixture(scope="session")
def kernel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the kernels above."""
    path = tmp_path_factory.mktemp("kernels") / "own_kernels.py"
    path.write_text(KERNELS, encoding="utf-8")
    return path
