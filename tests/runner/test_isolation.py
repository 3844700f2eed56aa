"""A kernel leaves the process as it found it, and its memory is not trusted."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from scancheck.runner.guarded import (
    guarded,
    guards_changed,
    shares_memory,
    values_changed,
)
from scancheck.runner.isolation import isolated_random_streams, restored_settings
from scancheck.runner.poison import poison_freed_memory, poisoned_allocations

# Halving the smallest normal fp32 gives zero only where subnormals are flushed.
SMALLEST_NORMAL = torch.tensor([2.0**-126])
MATMUL = torch.backends.cuda.matmul


@pytest.mark.parametrize(
    ("change", "read"),
    [
        (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
        (lambda: torch.set_default_device("meta"), torch.get_default_device),
        (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
        (
            lambda: torch.use_deterministic_algorithms(True, warn_only=True),
            torch.get_deterministic_debug_mode,
        ),
        (
            lambda: torch.set_float32_matmul_precision("medium"),
            torch.get_float32_matmul_precision,
        ),
        (lambda: torch.set_num_threads(1), torch.get_num_threads),
        (
            lambda: torch.set_flush_denormal(True),
            lambda: (SMALLEST_NORMAL / 2).tolist(),
        ),
        (lambda: np.seterr(under="raise"), np.geterr),
        (
            lambda: setattr(MATMUL, "allow_bf16_reduced_precision_reduction", False),
            lambda: MATMUL.allow_bf16_reduced_precision_reduction,
        ),
        (
            lambda: setattr(torch.backends.cudnn, "benchmark", True),
            lambda: torch.backends.cudnn.benchmark,
        ),
    ],
    ids=[
        "dtype",
        "device",
        "grad",
        "deterministic",
        "matmul",
        "threads",
        "subnormals",
        "numpy",
        "reduction",
        "cudnn",
    ],
)
def test_global_setting_is_restored(
    change: Callable[[], object], read: Callable[[], object]
) -> None:
    """What a kernel switches is switched back, also when it raises."""
    torch.set_num_threads(2)
    before = read()
    with pytest.raises(KeyError), restored_settings():
        change()
        assert read() != before
        raise KeyError
    assert read() == before


@pytest.mark.skipif(
    not hasattr(torch.backends, "fp32_precision"), reason="needs torch 2.9"
)
@pytest.mark.parametrize("owner", ["torch.backends", "torch.backends.cuda.matmul"])
def test_precision_set_by_its_newer_name_is_restored(owner: str) -> None:
    """After it torch refuses to tell the older switches, which are restored too."""
    place = {"torch.backends": torch.backends, "torch.backends.cuda.matmul": MATMUL}
    changed: Any = place[owner]
    older = torch.get_float32_matmul_precision(), MATMUL.allow_tf32
    before = changed.fp32_precision
    with restored_settings():
        changed.fp32_precision = "tf32"
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
    assert changed.fp32_precision == before
    assert (torch.get_float32_matmul_precision(), MATMUL.allow_tf32) == older


def test_random_streams_go_on_undisturbed() -> None:
    """Draws inside repeat with the seed and leave the streams outside as they were."""

    def draws() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]

    def seeded() -> None:
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)

    seeded()
    expected = draws() + draws()
    seeded()
    outside = draws()
    with isolated_random_streams(1):
        inside = draws()
        assert draws() != inside
    with isolated_random_streams(1):
        assert draws() == inside
    assert outside + draws() == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(3, 5), (1,), (0, 4), (100, 100)])
def test_guarded_copy(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """The copy is contiguous, aligned, in memory of its own, between NaN."""
    values = torch.arange(float(np.prod(shape))).reshape(shape).to(dtype)
    guard = guarded(values)
    tensor = guard.tensor
    assert torch.equal(tensor, values)
    assert tensor.is_contiguous()
    assert tensor.data_ptr() % 64 == 0
    assert not shares_memory(values, guard)
    assert shares_memory(tensor, guard) == (tensor.numel() > 0)
    before = tensor.as_strided((1,), (1,), tensor.storage_offset() - 1)
    behind = tensor.as_strided((1,), (1,), tensor.storage_offset() + tensor.numel())
    assert before.isnan()
    assert behind.isnan()
    for outside in (before, behind):
        assert not guards_changed(guard)
        kept = outside.view(torch.uint8).clone()
        outside.fill_(0.0)
        assert guards_changed(guard)
        outside.view(torch.uint8).copy_(kept)
    assert not values_changed(guard)
    tensor += 1.0
    assert values_changed(guard) == (tensor.numel() > 0)
    assert not guards_changed(guard)


@pytest.mark.parametrize("elements", [1, 16, 1000, 30_000, 3_000_000])
def test_fresh_memory_is_nan_within(elements: int) -> None:
    """Small blocks, large blocks and NumPy's are NaN before anything is written.

    One at a time: what is freed within may be handed out again as it is.
    """
    like = torch.zeros(elements)
    fresh: list[Callable[[], Any]] = [
        lambda: torch.empty(elements),
        lambda: torch.empty(elements, dtype=torch.bfloat16),
        lambda: torch.empty_like(like),
    ]
    if elements > 1000:
        fresh.append(lambda: torch.from_numpy(np.empty(elements)))
    for allocate in fresh:
        poison_freed_memory([4 * elements])
        with poisoned_allocations():
            values = allocate()
        assert values.isnan().all()


def test_zeros_stay_zeros_within() -> None:
    """Only memory that nobody has written is poisoned."""
    with poisoned_allocations():
        for elements in (1, 1000, 3_000_000):
            assert not torch.zeros(elements).any()
            assert not np.zeros(elements).any()
