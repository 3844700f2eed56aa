"""Kernels executed on a CUDA device: the runner sees there what it sees on the CPU."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from scancheck.bridge import bits_differ
from scancheck.kernel import Kernel
from scancheck.ops import op_named
from scancheck.recipes.inputs import Inputs
from scancheck.runner import Outcome, execute
from scancheck.runner.device_memory import fill_free_memory
from scancheck.runner.guarded import guarded, guards_changed
from scancheck.runner.poison import memory_filled_with

pytestmark = pytest.mark.gpu

LINEAR_SCAN = op_named("linear_scan")
CUDA = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def kernels(kernel_file: Path) -> ModuleType:
    """The kernels of the file, loaded here."""
    spec = importlib.util.spec_from_file_location("own_cuda_kernels", kernel_file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs(steps: int = 40, channels: int = 5) -> Inputs:
    """Values that every format holds."""
    shape = (2, steps, channels)
    numbers = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    return Inputs(tensors={"a": np.full(shape, 0.5), "b": numbers % 7 - 3}, switches={})


def run(kernels: ModuleType, name: str, **given: int) -> Outcome:
    """What comes of a kernel of the file on the device."""
    call = getattr(kernels, name)
    kernel = Kernel(name=name, op="linear_scan", call=call, devices=("cuda:0",))
    return execute(kernel, LINEAR_SCAN, inputs(**given), "fp32")


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "fp64", "fp8_e4m3"])
def test_a_right_kernel_gives_the_bits_of_the_cpu(
    kernels: ModuleType, dtype: str
) -> None:
    """The same elementwise operations round alike on both, gradients too."""
    found = []
    for device in ("cpu", "cuda:0"):
        kernel = Kernel(
            name="scan", op="linear_scan", call=kernels.scan, devices=(device,)
        )
        bars = {"h": np.ones((2, 40, 5)), "final_state": np.ones((2, 5))}
        found.append(execute(kernel, LINEAR_SCAN, inputs(), dtype, cotangents=bars))
    for outcome in found:
        assert outcome.problem is None
        assert not any(m.any() for m in outcome.differs.values())
        assert not any(m.any() for m in outcome.gradient_differs.values())
        assert not outcome.changed_inputs
        assert outcome.seconds > 0.0
    here, there = found
    for name, values in here.outputs.items():
        assert not bits_differ(values, there.outputs[name]).any()
    for name, values in here.gradients.items():
        assert not bits_differ(values, there.gradients[name]).any()


@pytest.mark.parametrize("steps", [1, 40, 3000, 70_000])
def test_unwritten_outputs_are_nan(kernels: ModuleType, steps: int) -> None:
    """In small and in large blocks of torch's allocator; zero where that is asked."""
    nothing = run(kernels, "stale", steps=steps)
    assert np.isnan(nothing.outputs["h"]).all()
    assert np.isnan(nothing.outputs["final_state"]).all()
    with memory_filled_with(0):
        nothing = run(kernels, "stale", steps=steps)
    assert not nothing.outputs["h"].any()


def test_memory_of_cupy_is_nan(kernels: ModuleType) -> None:
    """Its pool hands out other blocks than torch's, also such as held results."""
    cupy = pytest.importorskip("cupy", reason="needs CuPy")
    held = [cupy.ones(2 * 40 * 5, dtype=cupy.float32) for _ in range(3)]
    del held
    for _ in range(2):
        nothing = run(kernels, "stale_of_cupy")
        assert np.isnan(nothing.outputs["h"]).all()
        assert np.isnan(nothing.outputs["final_state"]).all()


def test_what_an_earlier_call_left_is_not_found(kernels: ModuleType) -> None:
    """A right result in a freed block does not pass for one that was written."""
    assert run(kernels, "scan").problem is None
    last = run(kernels, "unwritten").outputs["h"][:, -1]
    assert np.isnan(last).all()


@pytest.mark.parametrize("name", ["freed_within", "of_many_sizes"])
def test_memory_that_was_not_free_before_is_nan(kernels: ModuleType, name: str) -> None:
    """What the call itself has freed, and what is new from the driver."""
    torch.cuda.empty_cache()
    assert np.isnan(run(kernels, name).outputs["h"]).all()
    torch.cuda.empty_cache()
    with memory_filled_with(0):
        assert not np.isnan(run(kernels, name).outputs["h"]).any()


def test_free_memory_is_filled_and_no_other() -> None:
    """Every cached block holds the byte afterwards, and tensors keep their values."""
    sizes = (1, 500, 5000, 700_000, 3_000_000, 30_000_000)
    kept = [torch.zeros(n, dtype=torch.uint8, device=CUDA) for n in sizes]
    freed = [torch.zeros(n, dtype=torch.uint8, device=CUDA) for n in sizes]
    del freed
    fill_free_memory(CUDA, 0xA5)
    fresh = [torch.empty(n, dtype=torch.uint8, device=CUDA) for n in sizes]
    for tensor in fresh:
        assert bool((tensor == 0xA5).all())
    for tensor in kept:
        assert not bool(tensor.any())


def test_guards_are_on_the_device() -> None:
    """A write behind the end of an input is seen, as is none."""
    guard = guarded(torch.ones(100, device=CUDA))
    assert guard.tensor.is_cuda
    behind = guard.tensor.as_strided((1,), (1,), guard.tensor.storage_offset() + 100)
    assert bool(behind.isnan())
    assert not guards_changed(guard)
    behind.fill_(0.0)
    assert guards_changed(guard)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("writes_outside", "wrote_outside"),
        ("on_the_cpu", "device"),
        ("too_much", "device_error"),
    ],
)
def test_misuse_is_named(kernels: ModuleType, name: str, kind: str) -> None:
    """Each has its own kind, and leaves the device usable."""
    outcome = run(kernels, name)
    assert outcome.problem is not None
    assert outcome.problem.kind == kind, outcome.problem
    assert not outcome.device_lost
    assert run(kernels, "scan").problem is None


def test_an_order_that_changes_is_seen(kernels: ModuleType) -> None:
    """Sums whose order the scheduler decides on differ between identical calls."""
    masks = [run(kernels, "races").differs["h"].any() for _ in range(5)]
    assert any(masks)


def test_the_random_stream_of_the_device_is_isolated(kernels: ModuleType) -> None:
    """Calls draw on, a repeated case draws the same, and the caller's stream stays."""
    torch.cuda.manual_seed(3)
    expected = [torch.rand(1, device=CUDA).item() for _ in range(2)]
    torch.cuda.manual_seed(3)
    first = torch.rand(1, device=CUDA).item()
    once, again = run(kernels, "draws"), run(kernels, "draws")
    assert once.differs["h"].any()
    assert not bits_differ(once.outputs["h"], again.outputs["h"]).any()
    assert [first, torch.rand(1, device=CUDA).item()] == expected


def test_what_a_kernel_switches_is_switched_back(kernels: ModuleType) -> None:
    """Reduced precision and the current stream are what they were."""
    before = torch.cuda.current_stream(), torch.get_float32_matmul_precision()
    assert run(kernels, "switches").problem is None
    after = torch.cuda.current_stream(), torch.get_float32_matmul_precision()
    assert before == after
