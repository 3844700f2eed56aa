"""Where kernels run: the device that is asked for, and whether it can be used."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from scancheck.errors import CaseInvalid, KernelUnavailable
from scancheck.kernel import Kernel

CPU = torch.device("cpu")
_CUDA: Any = torch.cuda  # parts of it have no annotations
_NAME = re.compile(r"cpu|cuda(?::(\d+))?")


def device_for(kernel: Kernel, asked: str | None) -> str:
    """The device that a kernel is judged on: `cpu`, or `cuda:N`.

    That is the one asked for, or else the kernel's own default. Raises CaseInvalid for
    a name of no device and for one that the kernel does not run on, KernelUnavailable
    with the reason for a device that is not here.
    """
    name = kernel.devices[0] if asked is None else asked
    match = _NAME.fullmatch(name)
    if match is None:
        raise CaseInvalid(f"--device: expected cpu, cuda or cuda:N; got {name!r}")
    kinds = {device.partition(":")[0] for device in kernel.devices}
    if name.partition(":")[0] not in kinds:
        raise CaseInvalid(
            f"--device: {kernel.name} runs on {' and '.join(sorted(kinds))}; got {name}"
        )
    if name == "cpu":
        return name
    reason = why_no_cuda()
    if reason is not None:
        raise KernelUnavailable(f"{kernel.name} cannot run on {name}: {reason}")
    index = _default_index() if match[1] is None else int(match[1])
    count = torch.cuda.device_count()
    if index >= count:
        there = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise KernelUnavailable(
            f"{kernel.name} cannot run on {name}: torch sees {there} here"
        )
    return f"cuda:{index}"


def why_no_cuda() -> str | None:
    """Why torch cannot use a CUDA device here, in one line; None where it can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if torch.cuda.is_available():
        return None
    try:
        _CUDA.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().splitlines()[0].rstrip(".")
    return "torch sees no CUDA device"


def is_lost(device: torch.device) -> bool:
    """Whether a fault has ended this process's use of the device for good."""
    try:
        finish(device)
    except RuntimeError:
        # What is left of an error that passes is told once; a fault stays.
        try:
            finish(device)
        except RuntimeError:
            return True
    return False


def finish(device: torch.device) -> None:
    """Waits for what was started on the device; raises RuntimeError where it failed."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def current(device: torch.device) -> Iterator[None]:
    """Within, the device is the one that CUDA code uses where it names none."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.current_device()
    torch.cuda.set_device(device)
    try:
        yield
    finally:
        with suppress(RuntimeError):  # of a device that was lost within
            torch.cuda.set_device(before)


def _default_index() -> int:
    return int(_CUDA.current_device()) if _CUDA.is_initialized() else 0
