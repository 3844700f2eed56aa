"""Launching a compiled kernel on torch tensors, and what is checked before.

Kernels get raw pointers and 64-bit integers, eight bytes each, and run on torch's
current stream of the tensors' device: no copy, no synchronisation.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from scancheck.errors import CaseInvalid
from scancheck.kernels.cuda.toolkit import OLDEST_CAPABILITY

LARGEST_GRID = 2**31 - 1

CUDA_NAMES = {
    torch.float32: "float",
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
}
"""What a storage dtype is called in the sources."""


def launch(
    function: Any,
    blocks: int,
    threads: tuple[int, ...],
    arguments: Sequence[int],
    shared: int = 0,
) -> None:
    """Runs a CuPy function on torch's current stream of the current device.

    `blocks` in a grid of one dimension; `shared` bytes of dynamic shared memory.
    """
    if blocks > LARGEST_GRID:
        raise CaseInvalid(
            f"the problem takes {blocks} blocks; a CUDA grid has at most {LARGEST_GRID}"
        )
    import cupy

    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
    function((blocks,), threads, tuple(arguments), shared_mem=shared, stream=stream)


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which `device` is the current one."""
    if device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def pointer(tensor: torch.Tensor | None) -> int:
    """The address of its first element; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def check_device(op: str, tensors: Mapping[str, torch.Tensor | None]) -> torch.device:
    """The CUDA device that all the given tensors are on.

    Raises CaseInvalid that names the tensor which is not on it.
    """
    present = {name: x for name, x in tensors.items() if x is not None}
    first, device = next((name, x.device) for name, x in present.items())
    for name, x in present.items():
        if x.device.type != "cuda":
            raise CaseInvalid(f"{op} {name}: expected a CUDA tensor; got {x.device}")
        if x.device != device:
            raise CaseInvalid(
                f"{op} {name}: expected device {device}, as {first}; got {x.device}"
            )
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST_CAPABILITY:
        raise CaseInvalid(
            f"{op}: expected a device of compute capability "
            f"{'.'.join(map(str, OLDEST_CAPABILITY))} or newer; got {device} with "
            f"{'.'.join(map(str, capability))}"
        )
    return device


def check_tensor(
    op: str,
    name: str,
    tensor: torch.Tensor,
    *,
    shape: Sequence[int] | None = None,
    dtypes: Sequence[torch.dtype] = tuple(CUDA_NAMES),
    contiguous_last: bool = True,
) -> None:
    """Raises CaseInvalid for another shape, dtype, or a last axis with gaps.

    An empty tensor or one of a single column has no gaps, whatever its strides.
    """
    if shape is not None and tuple(tensor.shape) != tuple(shape):
        raise CaseInvalid(
            f"{op} {name}: expected shape {list(shape)}; got {list(tensor.shape)}"
        )
    if tensor.dtype not in dtypes:
        raise CaseInvalid(
            f"{op} {name}: expected dtype {' or '.join(map(str, dtypes))}; "
            f"got {tensor.dtype}"
        )
    gaps = tensor.numel() > 0 and tensor.shape[-1] > 1 and tensor.stride(-1) != 1
    if contiguous_last and gaps:
        raise CaseInvalid(
            f"{op} {name}: expected a contiguous last axis (stride 1); got strides "
            f"{list(tensor.stride())}; {name}.contiguous() has it"
        )


def aligned(elements: int, *tensors: torch.Tensor | None) -> bool:
    """Whether vectors of `elements` can be loaded from every row of the tensors.

    Rows lie along the last axis; each must start at a multiple of the vector's bytes.
    """
    for tensor in tensors:
        if tensor is None:
            continue
        if tensor.data_ptr() % (elements * tensor.element_size()):
            return False
        if tensor.shape[-1] % elements:
            return False
        for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True):
            if size > 1 and stride % elements:
                return False
    return True
