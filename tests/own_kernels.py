"""Kernels of a user's own, which other processes load again, and may end.

Those that do something else do it beyond 40 tokens.
"""

import ctypes
import os
import sys
import time

import torch

Tensor = torch.Tensor


def scan(a: Tensor, b: Tensor) -> Tensor:
    """The scan, step by step in fp32."""
    h, states = torch.zeros_like(b[:, 0], dtype=torch.float32), []
    for t in range(a.shape[1]):
        h = a[:, t].float() * h + b[:, t].float()
        states.append(h)
    return torch.stack(states, dim=1).to(b.dtype)


def forgets(a: Tensor, b: Tensor) -> Tensor:
    """Drops the state after 8 tokens."""
    parts = [scan(a[:, t : t + 8], b[:, t : t + 8]) for t in range(0, a.shape[1], 8)]
    return torch.cat(parts, dim=1)


def crashes(a: Tensor, b: Tensor) -> Tensor:
    """Reads at address 0."""
    if a.shape[1] > 40:
        ctypes.string_at(0)
    return scan(a, b)


def hangs(a: Tensor, b: Tensor) -> Tensor:
    """Does not come back."""
    while a.shape[1] > 40:
        time.sleep(0.01)
    return scan(a, b)


def leaves(a: Tensor, b: Tensor) -> Tensor:
    """Ends its process without a word."""
    if a.shape[1] > 40:
        os._exit(7)
    return scan(a, b)


def exits(a: Tensor, b: Tensor) -> Tensor:
    """Ends its process as a script does."""
    if a.shape[1] > 40:
        sys.exit("no device")
    return scan(a, b)


def interrupts(a: Tensor, b: Tensor) -> Tensor:
    """Raises what Ctrl-C does."""
    if a.shape[1] > 40:
        raise KeyboardInterrupt
    return scan(a, b)


def loses_the_device(a: Tensor, b: Tensor) -> Tensor:
    """As a fault on a CUDA device does, told by every later use of it."""
    if a.shape[1] > 40:
        from scancheck.runner import execute, serving

        serving.is_lost = lambda device: True
        execute.__globals__["is_lost"] = serving.is_lost
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    return scan(a, b)


def chatters(a: Tensor, b: Tensor) -> Tensor:
    """Prints."""
    print("progress" * 1000)
    return scan(a, b)


def unwritten(a: Tensor, b: Tensor) -> Tensor:
    """Writes nothing."""
    return torch.empty_like(b)


def in_process(a: Tensor, b: Tensor) -> Tensor:
    """The number of its process as every output."""
    return torch.full_like(b, float(os.getpid()))


def needs_more(a: Tensor, b: Tensor, chunk_size: int) -> Tensor:
    """Takes what no case has."""
    return b


def by_sequence(a: Tensor, b: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
    """Right, also for sequences packed into one row."""
    if cu_seqlens is None:
        return scan(a, b)
    lengths = cu_seqlens.diff().tolist()
    pieces = zip(a.split(lengths, 1), b.split(lengths, 1), strict=True)
    return torch.cat([scan(x, y) for x, y in pieces], 1)
