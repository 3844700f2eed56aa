"""Global state that a kernel may leave changed, and its restoration."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import torch

from scancheck.runner.device import CPU

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]  # how it is read, and set


def _set_default_device(device: torch.device) -> None:
    """As torch's, but for the CPU without the mode that slows every factory call."""
    torch.set_default_device(None if device.type == "cpu" else device)


def _matmul_precision() -> str | None:
    """As torch's; None where a mode of its newer interface has no name in this one."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _set_matmul_precision(name: str | None) -> None:
    if name is not None:
        torch.set_float32_matmul_precision(name)


def _attribute(owner: Any, name: str) -> Setting:
    return partial(getattr, owner, name), partial(setattr, owner, name)


def _precision_settings() -> Iterator[Setting]:
    """Switches that let products be formed in less than fp32, general ones first.

    `fp32_precision` is newer than the oldest torch that is supported, as is
    `allow_fp16_accumulation`; the older switches of the same modes raise where a newer
    one has been set.
    """
    yield _matmul_precision, _set_matmul_precision
    backends: Any = torch.backends
    matmul, cudnn, mkldnn = backends.cuda.matmul, backends.cudnn, backends.mkldnn
    if hasattr(backends, "fp32_precision"):
        owners = [backends, matmul, cudnn, cudnn.conv, cudnn.rnn, mkldnn]
        owners += [mkldnn.matmul, mkldnn.conv, mkldnn.rnn]
        yield from (_attribute(owner, "fp32_precision") for owner in owners)
    else:
        yield _attribute(cudnn, "allow_tf32")
    for name in (
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    ):
        if hasattr(matmul, name):
            yield _attribute(matmul, name)
    yield from (_attribute(cudnn, name) for name in ("benchmark", "deterministic"))


_SETTINGS: tuple[Setting, ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, _set_default_device),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.get_num_threads, torch.set_num_threads),
    *_precision_settings(),
)
_ON_CUDA: tuple[Setting, ...] = (
    (torch.cuda.current_device, torch.cuda.set_device),
    (torch.cuda.current_stream, torch.cuda.set_stream),
)


@contextmanager
def restored_settings(device: torch.device = CPU) -> Iterator[None]:
    """Afterwards torch's and NumPy's global switches are what they were before.

    Flush-to-zero cannot be asked for, and falsifies every conversion, so it is off
    afterwards whatever it was before.
    """
    on_device = _ON_CUDA if device.type == "cuda" else ()
    before = [read() for read, _ in _SETTINGS]
    before_on_device = [read() for read, _ in on_device]
    errors = np.geterr()
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        for (read, restore), value in zip(_SETTINGS, before, strict=True):
            if read() != value:
                restore(value)
        with suppress(RuntimeError):  # of a device that was lost within
            for (read, restore), value in zip(on_device, before_on_device, strict=True):
                if read() != value:
                    restore(value)
        np.seterr(**errors)


@contextmanager
def isolated_random_streams(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """The random streams of Python, NumPy and torch start at `seed`, for a while.

    On a CUDA device that is torch's stream there, of the current device.
    Within, they run on: a kernel that draws from them differs from call to call, in
    the same way whenever the same case is run.
    """
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]), _isolated_stream_on(device, seed):
        try:
            random.seed(seed)
            np.random.seed(seed)
            torch.default_generator.manual_seed(seed)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@contextmanager
def _isolated_stream_on(device: torch.device, seed: int) -> Iterator[None]:
    """The same for the stream of a CUDA device, which may be lost within."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_rng_state(device)
    torch.cuda.manual_seed(seed)
    try:
        yield
    finally:
        with suppress(RuntimeError):
            torch.cuda.set_rng_state(before, device)
