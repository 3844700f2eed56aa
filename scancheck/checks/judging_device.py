"""Where a case is judged: on the CUDA device that the kernel runs on, or on the CPU.

Oracles and budgets agree on both within their certificates, so no verdict depends on
it: what the device cannot do, also for having been lost, is done on the CPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from scancheck.errors import KernelUnavailable
from scancheck.kernel import Kernel
from scancheck.kernels.cuda.toolkit import unavailable
from scancheck.runner.attempt import is_device_error
from scancheck.runner.device import is_lost

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Judged(Generic[T]):
    """What came of a judgement, and why it was not made where it was to be."""

    found: T
    why_on_cpu: str | None = None


def judging_device(kernel: Kernel) -> tuple[str, str | None]:
    """Where large cases of a kernel are judged; why on the CPU where it runs elsewhere.

    The device is not opened yet.
    """
    device = kernel.devices[0]
    if device == "cpu":
        return device, None
    reason = unavailable()
    return (device, None) if reason is None else ("cpu", reason)


def judged_on(device: str, judge: Callable[[str], T]) -> Judged[T]:
    """What `judge` gives for the device, or for the CPU where the device fails.

    A device that a kernel's fault has lost to this process is not tried.
    """
    if device == "cpu":
        return Judged(judge(device))
    if is_lost(torch.device(device)):
        return Judged(judge("cpu"), f"{device} is lost to this process")
    try:
        return Judged(judge(device))
    except Exception as error:
        # CuPy may lack a library, which shows when it is first used.
        lacking = isinstance(error, KernelUnavailable | ImportError)
        if not (lacking or is_device_error(error)):
            raise
        reason = f"{device}: {_first_line(error)}"
    return Judged(judge("cpu"), reason)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
