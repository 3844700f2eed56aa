"""Global state that a kernel may leave changed, and its restoration."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]  # how it is read, and set


def _set_default_device(device: torch.device) -> None:
    """As torch's, but for the CPU without the mode that slows every factory call."""
    torch.set_default_device(None if device.type == "cpu" else device)


_SETTINGS: tuple[Setting, ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, _set_default_device),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_num_threads, torch.set_num_threads),
)


@contextmanager
def restored_settings() -> Iterator[None]:
    """Afterwards torch's and NumPy's global switches are what they were before.

    Flush-to-zero cannot be asked for, and falsifies every conversion, so it is off
    afterwards whatever it was before.
    """
    before = [read() for read, _ in _SETTINGS]
    errors = np.geterr()
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        for (read, restore), value in zip(_SETTINGS, before, strict=True):
            if read() != value:
                restore(value)
        np.seterr(**errors)


@contextmanager
def isolated_random_streams(seed: int) -> Iterator[None]:
    """The random streams of Python, NumPy and torch start at `seed`, for a while.

    Within, they run on: a kernel that draws from them differs from call to call, in
    the same way whenever the same case is run.
    """
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            random.seed(seed)
            np.random.seed(seed)
            torch.default_generator.manual_seed(seed)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
