"""Gradients of selective_scan on a CUDA device against their CPU model, bit by bit."""

import pytest
import torch

from scancheck.kernels.cuda import selective_scan as forward
from scancheck.kernels.cuda import selective_scan_backward_instances as instances
from scancheck.kernels.cuda.selective_scan_kernels import selective_scan
from scancheck.kernels.cuda.toolkit import unavailable
from scancheck.kernels.models.of_cuda_kernels import different, results

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHAPES = (
    # B, D, L, N and the groups of B and C: both kernels, tiles that are whole and not.
    (1, 1, 1, 1, 1),
    (2, 96, 200, 16, 2),
    (1, 400, 80, 7, 1),
    (2, 70, 45, 16, 1),
    (2, 20, 77, 29, 2),
    (1, 9, 40, 200, 1),
)
Tensors = dict[str, torch.Tensor]


def drawn(
    shape: tuple[int, int, int, int, int], dtype: torch.dtype, constant: bool = False
) -> tuple[Tensors, torch.Tensor, torch.Tensor]:
    """Inputs with gates as at the start of training, and cotangents, on the device."""
    batch, channels, steps, states, groups = shape
    draw = torch.Generator().manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=draw)

    row, keys = (batch, channels, steps), (batch, groups, states, steps)
    tensors = {
        "u": normal(*row).to(dtype),
        "delta": (0.5 * normal(*row) - 2).to(dtype),
        "A": -torch.exp(2 * normal(channels, states)),
        "B": normal(channels, states) if constant else normal(*keys).to(dtype),
        "C": normal(*keys).to(dtype),
        "D": normal(channels),
        "z": normal(*row).to(dtype),
        "delta_bias": 0.1 * normal(channels),
        "initial_state": normal(batch, channels, states),
    }
    on_device = {name: x.cuda() for name, x in tensors.items()}
    y_bar = normal(*row).to(dtype).cuda()
    return on_device, y_bar, normal(batch, channels, states).cuda()


def gradients(
    variant: str,
    tensors: Tensors,
    y_bar: torch.Tensor,
    last_bar: torch.Tensor,
    state: str = "fp32",
) -> Tensors:
    """Of the sequential order, by autograd."""
    inputs = {name: x.detach().requires_grad_() for name, x in tensors.items()}
    outputs = forward.selective_scan(
        variant, "sequential", **inputs, delta_softplus=True, state=state
    )
    found = torch.autograd.grad(outputs, list(inputs.values()), [y_bar, last_bar])
    return dict(zip(inputs, found, strict=True))


def modelled(
    variant: str,
    tensors: Tensors,
    y_bar: torch.Tensor,
    last_bar: torch.Tensor,
    state: str = "fp32",
) -> Tensors:
    """On the CPU, from the states that the model of the forward pass keeps."""
    kernel = selective_scan(variant, "sequential", state=state)
    return results(
        kernel.name,
        {name: x.cpu() for name, x in tensors.items()},
        [y_bar.cpu(), last_bar.cpu()],
        delta_softplus=True,
    ).gradients


def assert_same_bits(got: Tensors, expected: Tensors) -> None:
    """Equal names, dtypes and bits."""
    assert got.keys() == expected.keys()
    for name, x in got.items():
        wrong = int(different(x, expected[name]).sum())
        assert not wrong, f"{name} differs in {wrong} entries"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("variant", ["reproducible", "tabulated"])
def test_gradients_are_the_models(
    variant: str, shape: tuple[int, int, int, int, int], dtype: torch.dtype
) -> None:
    """Variants with a model have its bits in every gradient."""
    if variant == "tabulated" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the table is that of sm_90")
    given = drawn(shape, dtype)
    assert_same_bits(gradients(variant, *given), modelled(variant, *given))


@pytest.mark.parametrize("state", ["fp16", "bf16"])
def test_gradients_from_a_short_state_are_the_models(state: str) -> None:
    """So they are where the states that are kept were rounded."""
    given = drawn((2, 96, 200, 16, 2), torch.bfloat16)
    found = [f("reproducible", *given, state) for f in (gradients, modelled)]
    assert_same_bits(*found)


@pytest.mark.parametrize("constant", [False, True])
def test_gradients_of_the_accurate_variant(constant: bool) -> None:
    """They are the model's from the accurate states, constant B or not."""
    given = drawn((3, 32, 70, 9, 1), torch.float32, constant)
    assert_same_bits(gradients("accurate", *given), modelled("accurate", *given))


@pytest.mark.parametrize("variant", ["fast", "reproducible"])
def test_gradients_repeat(variant: str) -> None:
    """Ten runs have the same bits, and so has the replay of a CUDA graph."""
    given = drawn((4, 1536, 256, 16, 1), torch.bfloat16)
    first = gradients(variant, *given)
    for _ in range(9):
        assert_same_bits(gradients(variant, *given), first)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients(variant, *given)
    for x in captured.values():
        x.fill_(torch.nan)
    graph.replay()
    assert_same_bits(captured, first)


def test_slices_change_no_bits_but_those_of_sums_over_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A problem in slices of steps and rows has the gradients of the whole."""
    given = drawn((3, 128, 208, 16, 1), torch.float32)
    whole = gradients("reproducible", *given)
    monkeypatch.setattr(instances, "WORKSPACE", 100_000)
    monkeypatch.setattr(instances, "_FEWEST_STEPS", 64)
    sliced = gradients("reproducible", *given)
    for x in (whole, sliced):
        del x["D"], x["delta_bias"]
    assert_same_bits(sliced, whole)


def test_the_order_in_time_has_gradients_too() -> None:
    """They are those of the states that the sequential order makes again."""
    given = drawn((1, 64, 512, 16, 1), torch.float32)
    inputs = {name: x.detach().requires_grad_() for name, x in given[0].items()}
    outputs = forward.selective_scan(
        "reproducible", "time", **inputs, delta_softplus=True
    )
    found = torch.autograd.grad(outputs, list(inputs.values()), list(given[1:]))
    named = dict(zip(inputs, found, strict=True))
    assert_same_bits(named, gradients("reproducible", *given))
