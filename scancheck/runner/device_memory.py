"""Memory that torch's CUDA allocator holds free, and its filling.

The allocator keeps freed blocks, splits and joins them, and hands out the smallest that
is large enough, as it is (c10/cuda/CUDACachingAllocator.cpp). So every free block is
filled, wherever it comes from; only memory that is new from the driver is not.
"""

from collections.abc import Iterable, Iterator, Mapping
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
