"""What torch.empty and its like hand out on a CUDA device, made recognisable.

torch's allocator hands out memory as it is: new from the driver, or freed a moment ago
by the kernel itself. Filling what is free before a call reaches neither.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _python_dispatch

# Parts of it have no annotations.
_DispatchMode: Any = _python_dispatch.TorchDispatchMode

_MADE_EMPTY = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    )
)


@contextmanager
def empty_tensors_filled(device: torch.device, byte: int) -> Iterator[None]:
    """Within, new tensors of the device that nobody has written hold this byte.

    Those that compiled functions make inside are not seen. A torch that would leave
    such functions uncompiled within is left alone.
    """
    if hasattr(_DispatchMode, "ignore_compile_internals"):
        with _Filling(device, byte):
            yield
    else:
        yield


class _Filling(_DispatchMode):  # type: ignore[misc]
    """Every operator as it is; what an empty one makes is filled."""

    supports_higher_order_operators = True

    def __init__(self, device: torch.device, byte: int) -> None:
        super().__init__()
        self._device, self._byte = device, byte

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Otherwise torch.compile compiles nothing within."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        made = func(*args, **given)
        # What is made in a tensor that was there before may be a part of another.
        if getattr(func, "overloadpacket", None) in _MADE_EMPTY and "out" not in given:
            self._fill(made)
        return made

    def _fill(self, made: object) -> None:
        """Fills a tensor that has memory of its own on the device, gaps too."""
        if type(made) is not Tensor or made.layout != torch.strided:
            return
        if made.device == self._device:
            memory = torch.empty(0, dtype=torch.uint8, device=self._device)
            memory.set_(made.untyped_storage()).fill_(self._byte)
