"""Memory that a kernel has not written holds what the runner fills it with."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from scancheck.kernel import Kernel
from scancheck.ops import op_named
from scancheck.recipes.inputs import Inputs
from scancheck.runner import execute, poison
from scancheck.runner.device import CPU
from scancheck.runner.empty_tensors import empty_tensors_filled
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


EMPTY: dict[str, Callable[[Tensor], Tensor]] = {
    "empty": lambda x: torch.empty(5, dtype=x.dtype),
    "empty_like": torch.empty_like,
    "new_empty": lambda x: x.new_empty(3, 4),
    "strided": lambda x: torch.empty_strided((3, 2), (1, 5), dtype=x.dtype),
    "new_strided": lambda x: x.new_empty_strided((3, 2), (1, 5)),
    "permuted": lambda x: torch.empty_permuted((3, 2, 4), (2, 0, 1), dtype=x.dtype),
    "channels_last": lambda x: torch.empty(
        2, 3, 4, 5, memory_format=torch.channels_last, dtype=x.dtype
    ),
}


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_empty_tensors_are_filled(name: str, dtype: torch.dtype) -> None:
    """However they are made, also in memory that was freed within, and none beside."""
    make = EMPTY[name]
    like = torch.zeros(3, 4, dtype=dtype)
    with empty_tensors_filled(CPU, 0xFF):
        for _ in range(3):
            made = make(like)
            assert bool(made.isnan().all())
            made.fill_(1.0)
            del made
    with empty_tensors_filled(CPU, 0):
        assert not bool(make(like).any())
    with empty_tensors_filled(torch.device("cuda", 0), 0xFF):
        assert like.add(1.0).eq(1.0).all()
    assert not bool(like.any())


def test_what_is_written_keeps_its_values() -> None:
    """Other operators, gradients and tensors that were there before are as without."""
    x = torch.arange(6.0, requires_grad=True)
    room = torch.arange(12.0)
    with empty_tensors_filled(CPU, 0xFF):
        y = (torch.cat([x, torch.zeros(2)]) ** 2).sum()
        (gradient,) = torch.autograd.grad(y, x)
        torch.empty(4, out=room[:4])
        assert torch.empty(2, 3, layout=torch.sparse_coo).to_dense().eq(0.0).all()
    assert torch.equal(gradient, 2.0 * torch.arange(6.0))
    assert torch.equal(room, torch.arange(12.0))


@pytest.mark.skipif(
    not hasattr(TorchDispatchMode, "ignore_compile_internals"),
    reason="this torch cannot compile within",
)
def test_compiled_functions_are_compiled_within() -> None:
    """torch.compile would otherwise run its function as it is written."""
    compiled = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph

    @torch.compile(backend=backend)
    def twice(x: Tensor) -> Tensor:
        return x + x

    with empty_tensors_filled(CPU, 0xFF):
        assert torch.equal(twice(torch.ones(3)), torch.full((3,), 2.0))
    assert len(compiled) == 1
