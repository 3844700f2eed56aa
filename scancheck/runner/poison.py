"""Memory that a kernel is given before it has written there, made recognisable.

Every byte is 0xFF, which is a NaN in all formats: an output element that is never
written, or a temporary read too early, shows in what the kernel returns. Filled with
another byte, memory tells whether a NaN was read there or computed.
"""

import ctypes
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import cycle

import torch
from torch import Tensor

from scancheck.runner.device import CPU
from scancheck.runner.device_memory import fill_cupy_memory, fill_free_memory
from scancheck.runner.empty_tensors import empty_tensors_filled

_NAN_BYTE = 0xFF
_COPIES = 4  # outputs share the freed blocks with a kernel's own temporaries

# glibc, malloc/malloc.c: with M_PERTURB, malloc fills new blocks with the complement of
# the lowest byte of its value, and free fills with that byte; 0 switches it off.
_M_PERTURB = -6
_PERTURB_ON = 0x100
_PERTURB_OFF = 0

# A request that meets a freed block of just its size, not sorted in yet, gets it by way
# of the thread's cache, which fills nothing and leaves a pointer in the first bytes. A
# larger request sorts all such blocks in, unless it too meets one of just its size: so
# these are not alike. They are beyond what that cache holds and below what comes from a
# mapping of its own.
_SORTING_REQUESTS = cycle(range(70_000, 80_000, 16))

_byte: ContextVar[int] = ContextVar("byte", default=_NAN_BYTE)


@contextmanager
def memory_filled_with(byte: int) -> Iterator[None]:
    """Within, memory that a kernel has not written or may not read holds this byte."""
    before = _byte.set(byte)
    try:
        yield
    finally:
        _byte.reset(before)


def filling_byte() -> int:
    """The byte that such memory holds now."""
    return _byte.get()


def unwritten_bytes(size: int, device: torch.device = CPU) -> Tensor:
    """A uint8 tensor of `size` bytes as memory holds before a kernel writes there."""
    return torch.full((size,), _byte.get(), dtype=torch.uint8, device=device)


def poison_freed_memory(sizes: Iterable[int], device: torch.device = CPU) -> None:
    """Fills blocks of these sizes in bytes, with NaN by default, and frees them.

    Allocators that keep freed blocks hand them out again as they are. On a CUDA device
    all that torch's allocator holds free is filled.
    """
    wanted = [size for size in sizes for _ in range(_COPIES)]
    blocks = [unwritten_bytes(size, device) for size in wanted]
    del blocks
    if device.type == "cuda":
        fill_free_memory(device, _byte.get())
        fill_cupy_memory(wanted, device, _byte.get())


@contextmanager
def poisoned_allocations(device: torch.device = CPU) -> Iterator[None]:
    """Within, fresh memory of the C library is filled, where that library is glibc.

    On a CUDA device so are the tensors that torch makes without writing them.
    """
    if device.type == "cuda":
        with empty_tensors_filled(device, _byte.get()), poisoned_allocations():
            yield
        return
    library = _glibc()
    if library is None:
        yield
        return
    library.mallopt(_M_PERTURB, _PERTURB_ON | (~_byte.get() & 0xFF))
    library.free(library.malloc(next(_SORTING_REQUESTS)))
    try:
        yield
    finally:
        library.mallopt(_M_PERTURB, _PERTURB_OFF)


@cache
def _glibc() -> ctypes.CDLL | None:
    """The C library where it is glibc, or None in a process that has another."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return None
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.free.restype = None
    return library
