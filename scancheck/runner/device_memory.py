"""Memory that the CUDA allocators of torch and CuPy hold free, and its filling.

torch's keeps freed blocks, splits and joins them, and hands out the smallest that is
large enough, as it is (c10/cuda/CUDACachingAllocator.cpp). So every free block is
filled, wherever it comes from; memory that is new from the driver is not. CuPy's does
not tell its free blocks, so some of the sizes that are expected are filled.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch

_INACTIVE = "inactive"  # neither in use nor waiting for another stream
_SHARED_POOL = (0, 0)  # those of CUDA graphs are theirs until they are released


class _Bytes:
    """Device memory at an address, as torch takes it without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 2,
        }


def fill_free_memory(device: torch.device, byte: int) -> None:
    """Fills all memory that torch's own allocator holds free on the device.

    Another one that was chosen for it (PYTORCH_CUDA_ALLOC_CONF) tells of none.
    """
    cuda: Any = torch.cuda
    if cuda.get_allocator_backend() != "native":
        return
    for address, size in free_blocks(cuda.memory_snapshot(), device.index):
        torch.as_tensor(_Bytes(address, size), device=device).fill_(byte)


def fill_cupy_memory(sizes: Iterable[int], device: torch.device, byte: int) -> None:
    """Fills and frees blocks of these sizes in CuPy's pool, where CuPy is in use."""
    cupy: Any = sys.modules.get("cupy")
    if cupy is None:
        return
    with suppress(RuntimeError), cupy.cuda.Device(device.index):  # of another CUDA
        blocks = [(cupy.cuda.alloc(size), size) for size in sizes if size > 0]
        for block, size in blocks:
            block.memset(byte, size)


def free_blocks(
    snapshot: Iterable[Mapping[str, Any]], index: int
) -> Iterator[tuple[int, int]]:
    """Address and bytes of each free block of the device with this index."""
    for segment in snapshot:
        pool = tuple(segment.get("segment_pool_id", _SHARED_POOL))
        if segment["device"] != index or pool != _SHARED_POOL:
            continue
        for block in segment["blocks"]:
            if block["state"] == _INACTIVE:
                yield block["address"], block["size"]
