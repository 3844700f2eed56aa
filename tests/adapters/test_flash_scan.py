"""The tile-and-carry scan in Triton, against a loop of float64."""

import pytest
import torch
from torch import Tensor

from scancheck.adapters import flash_scan
from scancheck.kernel import Kernel

KERNEL = flash_scan.flash_scan()
DEVICE = KERNEL.devices[0]
needs_triton = pytest.mark.skipif(
    KERNEL.unavailable is not None, reason=str(KERNEL.unavailable)
)
TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
UNIT = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
NAMES = ("h", "final_state", "a", "b", "initial_state")
B, D = 2, 3


def loop(a: Tensor, b: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """h_t = a_t h_{t-1} + b_t and the last one, token by token."""
    outputs = []
    for t in range(b.shape[1]):
        state = a[:, t] * state + b[:, t]
        outputs.append(state)
    return torch.stack(outputs, 1) if outputs else b * 1.0, state * 1.0


def results(kernel: Kernel | None, *inputs: Tensor) -> dict[str, Tensor]:
    """Outputs and gradients of a kernel, or of the loop, on the CPU."""
    tensors = [x.detach().requires_grad_() for x in inputs]
    if kernel is None:
        found = loop(*tensors)
    else:
        a, b, initial = (x.to(DEVICE) for x in tensors)
        found = kernel.call(a=a, b=b, initial_state=initial)
    source = torch.Generator().manual_seed(9)
    bars = [torch.randint(-4, 5, x.shape, generator=source) for x in found]
    slopes = torch.autograd.grad(
        found,
        tensors,
        [bar.to(x) for bar, x in zip(bars, found, strict=True)],
        allow_unused=True,  # a and b of no tokens
        materialize_grads=True,
    )
    named = zip(NAMES, (*found, *slopes), strict=True)
    return {name: x.detach().cpu() for name, x in named}


@needs_triton
@pytest.mark.parametrize("dtype", KERNEL.dtypes)
@pytest.mark.parametrize("steps", [0, 1, 64, 130])
def test_exact_where_nothing_rounds(steps: int, dtype: str) -> None:
    """Outputs and gradients at the edges of tiles, with decays of -1, 0 and 1."""
    source = torch.Generator().manual_seed(steps)
    shape = (B, steps, D)
    a = torch.randint(-1, 2, shape, generator=source).to(TORCH[dtype])
    b = torch.randint(-1, 2, shape, generator=source).to(TORCH[dtype])
    initial = torch.randint(-8, 9, (B, D), generator=source).float()
    found = results(KERNEL, a, b, initial)
    want = results(None, a.double(), b.double(), initial.double())
    assert found["h"].dtype == found["a"].dtype == TORCH[dtype]
    assert found["final_state"].dtype == torch.float32
    for name in NAMES:
        # A decay's gradient is a product, rounded once to be stored.
        assert torch.equal(found[name], want[name].to(found[name].dtype)), name


@needs_triton
@pytest.mark.parametrize("dtype", KERNEL.dtypes)
def test_slow_decays_are_the_loop(dtype: str) -> None:
    """Rounding alone: storage, and 70 positive terms in fp32, about one unit each."""
    source = torch.Generator().manual_seed(3)
    shape = (B, 70, D)
    a = (0.9 + 0.1 * torch.rand(shape, generator=source)).to(TORCH[dtype])
    b = torch.rand(shape, generator=source).to(TORCH[dtype])
    initial = torch.rand((B, D), generator=source)
    h, final = KERNEL.call(
        a=a.to(DEVICE), b=b.to(DEVICE), initial_state=initial.to(DEVICE)
    )
    want_h, want_final = loop(a.double(), b.double(), initial.double())
    sums = 2 * 71 * UNIT["fp32"]
    assert bool(((h.cpu().double() / want_h - 1).abs() <= sums + UNIT[dtype]).all())
    assert bool(((final.cpu().double() / want_final - 1).abs() <= sums).all())
    alone, _ = KERNEL.call(a=a.to(DEVICE), b=b.to(DEVICE))
    assert not torch.equal(alone.cpu(), h.cpu())


@needs_triton
def test_the_tile_is_the_contracts() -> None:
    """The number that the contract declares is the source's."""
    from scancheck.adapters import flash_scan_triton

    assert flash_scan_triton.TILE == flash_scan.TILE == KERNEL.chunk


def test_without_triton_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason says how to install it."""
    monkeypatch.setattr(flash_scan, "find_spec", lambda name: None)
    assert flash_scan.flash_scan().unavailable == (
        "triton is not installed; pip install 'scancheck[fla]'"
    )
