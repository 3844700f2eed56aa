"""Memory that a kernel has not written holds what the runner fills it with."""

import numpy as np
import pytest
import torch
from torch import Tensor

from scancheck.kernel import Kernel
from scancheck.ops import op_named
from scancheck.recipes.inputs import Inputs
from scancheck.runner import execute, poison
from scancheck.runner.poison import memory_filled_with, poisoned_allocations

LINEAR_SCAN = op_named("linear_scan")


def unwritten(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs that nobody has written."""
    return torch.empty_like(b), torch.empty(b.shape[0], b.shape[2])


def past_the_end(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs read behind the end of b."""
    end = b.storage_offset() + b.numel()
    behind = b.as_strided(b.shape, b.stride(), end)
    return behind.clone(), behind[:, -1].float().clone()


@pytest.mark.parametrize("call", [unwritten, past_the_end])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_unwritten_memory_is_nan_or_what_is_asked_for(call: object, dtype: str) -> None:
    """NaN by default, zero where memory is filled with zeros."""
    kernel = Kernel(name="tried", op="linear_scan", call=call)  # type: ignore[arg-type]
    values = np.full((1, 8, 4), 0.5)
    inputs = Inputs(tensors={"a": values, "b": values}, switches={})
    found = execute(kernel, LINEAR_SCAN, inputs, dtype, runs=1)
    assert np.isnan(found.outputs["h"]).all()
    with memory_filled_with(0):
        found = execute(kernel, LINEAR_SCAN, inputs, dtype, runs=1)
    assert (found.outputs["h"] == 0.0).all()


@pytest.mark.skipif(poison._glibc() is None, reason="needs glibc")
def test_blocks_freed_before_are_filled_too() -> None:
    """Blocks that the C library has freed but not sorted in are no way around it."""
    library = poison._glibc()
    assert library is not None
    sizes = [120, 128, 136, 144, 152, 160]  # 28 bytes, aligned to 64, take one of these
    for _ in range(20):
        apart = [library.malloc(size) for size in sizes * 6]
        for block in apart[::2]:
            library.free(block)
        # The thread's cache holds seven of a size; these take them out of it.
        others = [library.malloc(size) for size in sizes * 4]
        with poisoned_allocations():
            fresh = torch.empty(7)
        for block in apart[1::2] + others:
            library.free(block)
        assert torch.isnan(fresh).all()
