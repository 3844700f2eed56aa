"""mamba_ssm's Triton kernels on a machine without a CUDA device, interpreted.

Each of its functions names a device for the launch, and some of the backward pass ask
for the number of its processors, by which they cut their sums. What the package's
modules know as `torch` says here that there is nothing to switch to, and one processor.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

_MODULES = "mamba_ssm.ops.triton."


def _nothing_to_switch_to(device: Any) -> AbstractContextManager[None]:
    return nullcontext()


def _one_processor(device: Any) -> SimpleNamespace:
    return SimpleNamespace(multi_processor_count=1)


class WithoutDevices:
    """torch, with no devices of CUDA."""

    cuda = SimpleNamespace(
        device=_nothing_to_switch_to, get_device_properties=_one_processor
    )

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, name)


def take_devices_away() -> None:
    """Gives the Triton modules of the package that are loaded such a torch."""
    for name, module in list(sys.modules.items()):
        known = vars(module) if isinstance(module, ModuleType) else {}
        if name.startswith(_MODULES) and isinstance(known.get("torch"), ModuleType):
            known["torch"] = WithoutDevices()
