"""accelerated_scan.scalar, its scan in Triton, against a loop of float64."""

import pytest
import torch
from plain_loops import loop
from torch import Tensor

from scancheck.adapters import accelerated_scan as adapter
from scancheck.kernel import Kernel

REFERENCE, KERNEL = adapter.accelerated_scans()
DEVICE = KERNEL.devices[0]
TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
UNIT = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
needs_triton = pytest.mark.skipif(
    KERNEL.unavailable is not None, reason=str(KERNEL.unavailable)
)


def results(kernel: Kernel | None, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    """h and the gradients of a and b, of a kernel or of the loop, on the CPU."""
    given = {name: x.detach().requires_grad_() for name, x in (("a", a), ("b", b))}
    if kernel is None:
        h = loop("linear_scan", given)["h"]
    else:
        h = kernel.call(**{name: x.to(DEVICE) for name, x in given.items()})
    source = torch.Generator().manual_seed(9)
    bar = torch.randint(-4, 5, h.shape, generator=source).to(h)
    slopes = torch.autograd.grad(h, list(given.values()), bar)
    return {"h": h.detach().cpu(), **dict(zip(given, slopes, strict=True))}


@needs_triton
@pytest.mark.parametrize("dtype", KERNEL.dtypes)
@pytest.mark.parametrize("shape", [(2, 1, 1), (2, 5, 2), (1, 2048, 1), (1, 2050, 1)])
def test_exact_where_nothing_rounds(shape: tuple[int, ...], dtype: str) -> None:
    """Outputs and gradients at the edge of a block, with decays of -1, 0 and 1."""
    source = torch.Generator().manual_seed(shape[1])
    a, b = (
        torch.randint(-1, 2, shape, generator=source).to(TORCH[dtype]) for _ in "ab"
    )
    found = results(KERNEL, a, b)
    want = results(None, a.double(), b.double())
    for name in ("h", "a", "b"):
        assert found[name].dtype == TORCH[dtype]
        assert torch.equal(found[name].double(), want[name]), name


@needs_triton
@pytest.mark.parametrize("dtype", KERNEL.dtypes)
def test_slow_decays_are_the_loop(dtype: str) -> None:
    """Rounding alone: 70 positive terms, a product and a sum a step in the dtype."""
    source = torch.Generator().manual_seed(3)
    a = (0.9 + 0.1 * torch.rand((1, 70, 2), generator=source)).to(TORCH[dtype])
    b = torch.rand((1, 70, 2), generator=source).to(TORCH[dtype])
    h = results(KERNEL, a, b)["h"].double()
    want = results(None, a.double(), b.double())["h"]
    off = (h / want - 1).abs()
    assert bool((off <= 3 * 70 * UNIT[dtype]).all())
    # Sums are in the dtype: rounded once from fp32 they were within one unit.
    assert dtype == "fp32" or bool((off > 1.01 * UNIT[dtype]).any())


@needs_triton
def test_gradients_of_decays_take_the_returned_states() -> None:
    """In fp16 da is what was returned, in fp16, times db: not the fp32 state."""
    source = torch.Generator().manual_seed(5)
    a, b = (torch.rand((1, 40, 1), generator=source).half() for _ in "ab")
    found = results(KERNEL, a, b)
    before = found["h"][:, :-1].float()
    # db is fp32 there and then rounded: a unit of fp16 each.
    want = before * found["b"][:, 1:].float()
    assert torch.equal(found["a"][:, 0], torch.zeros_like(found["a"][:, 0]))
    off = (found["a"][:, 1:].float() - want).abs()
    assert bool((off <= 2.01 * UNIT["fp16"] * want.abs()).all())


def test_each_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package first, then Triton, which the reference does not want."""
    there = {"accelerated_scan"}
    monkeypatch.setattr(adapter, "find_spec", lambda name: name in there or None)
    reference, kernel = adapter.accelerated_scans()
    assert reference.unavailable is None
    assert kernel.unavailable == "triton is not installed; pip install triton"
    there.clear()
    for kernel in adapter.accelerated_scans():
        assert kernel.unavailable == (
            "accelerated-scan is not installed; "
            "pip install 'scancheck[accelerated-scan]'"
        )


def test_the_block_is_the_sources() -> None:
    """The number of tokens that the contract declares is the kernel's default."""
    if KERNEL.unavailable is None:
        from accelerated_scan import scalar

        names = scalar.forward_scan.fn.__defaults__
        assert names == (adapter.BLOCK,) == (KERNEL.chunk,)
