"""selective_scan on a CUDA device against its CPU model, bit by bit."""

from typing import Any

import pytest
import torch

from scancheck.kernels.cuda.selective_scan import selective_scan
from scancheck.kernels.cuda.toolkit import unavailable
from scancheck.kernels.models import cuda_selective_scan as model
from scancheck.kernels.models.of_cuda_kernels import different

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHAPES = (
    # B, D, L, N and the groups of B and C: whole tiles and ragged ones, vectors that
    # are whole and not, few states and many.
    (1, 1, 1, 1, 1),
    (2, 40, 648, 16, 2),
    (1, 200, 256, 16, 1),
    (1, 33, 201, 7, 1),
    (2, 12, 320, 40, 3),
    (1, 5, 77, 256, 1),
)
VARIANTS = (
    ("sequential", "reproducible"),
    ("sequential", "tabulated"),
    ("sequential", "accurate"),
    ("time", "reproducible"),
    ("time", "tabulated"),
)
Tensors = dict[str, Any]


def drawn(
    shape: tuple[int, int, int, int, int], dtype: torch.dtype, constant: bool = False
) -> Tensors:
    """Gates as at the start of training, on the CPU."""
    batch, channels, steps, states, groups = shape
    draw = torch.Generator().manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=draw)

    row = (batch, channels, steps)
    keys = (batch, groups, states, steps)
    return {
        "u": normal(*row).to(dtype),
        "delta": (0.5 * normal(*row) - 2).to(dtype),
        "A": -torch.exp(2 * normal(channels, states)),
        "B": normal(channels, states) if constant else normal(*keys).to(dtype),
        "C": normal(*keys).to(dtype),
        "D": normal(channels),
        "z": normal(*row).to(dtype),
        "delta_bias": 0.1 * normal(channels),
        "initial_state": normal(batch, channels, states),
        "delta_softplus": True,
    }


def on_device(tensors: Tensors) -> Tensors:
    """The same tensors on the device."""
    return {
        name: x.cuda() if isinstance(x, torch.Tensor) else x
        for name, x in tensors.items()
    }


def assert_same_bits(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal dtypes, shapes and bits."""
    assert not different(got, expected).any()


@pytest.mark.parametrize(("order", "variant"), VARIANTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_the_model(
    dtype: torch.dtype, shape: tuple[int, int, int, int, int], order: str, variant: str
) -> None:
    """Outputs and last states have the bits of the CPU model, at every shape."""
    if variant == "tabulated" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the table is that of sm_90")
    tensors = drawn(shape, dtype)
    got = selective_scan(variant, order, **on_device(tensors))
    for result, expected in zip(
        got, model.selective_scan(order, variant, **tensors), strict=True
    ):
        assert_same_bits(result, expected)


@pytest.mark.parametrize("state", ["fp16", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_of_the_model_with_a_short_state(
    shape: tuple[int, int, int, int, int], state: str
) -> None:
    """So they have where the state is rounded to 16 bits every 32 steps."""
    dtype = torch.float32 if state == "bf16" else torch.bfloat16
    tensors = drawn(shape, dtype)
    got = selective_scan(
        "reproducible", "sequential", **on_device(tensors), state=state
    )
    expected = model.selective_scan(
        "sequential", "reproducible", **tensors, state=state
    )
    for result, wanted in zip(got, expected, strict=True):
        assert_same_bits(result, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_the_model_with_constant_keys(dtype: torch.dtype) -> None:
    """So they have where B does not vary in time."""
    tensors = drawn((2, 6, 100, 20, 2), dtype, constant=True)
    got = selective_scan("reproducible", None, **on_device(tensors))
    expected = model.selective_scan("sequential", "reproducible", **tensors)
    for result, wanted in zip(got, expected, strict=True):
        assert_same_bits(result, wanted)


@pytest.mark.parametrize("optional", [(), ("D",), ("z", "delta_bias")], ids=str)
@pytest.mark.parametrize("order", ["sequential", "time"])
def test_bits_of_the_model_without_options(
    order: str, optional: tuple[str, ...]
) -> None:
    """So they have without D, z, bias, initial state and softplus."""
    tensors = drawn((1, 20, 136, 16, 1), torch.float32)
    tensors["delta"] = tensors["delta"].abs()
    required = ("u", "delta", "A", "B", "C")
    tensors = {name: tensors[name] for name in (*required, *optional)}
    got = selective_scan("reproducible", order, **on_device(tensors))
    expected = model.selective_scan(order, "reproducible", **tensors)
    for result, wanted in zip(got, expected, strict=True):
        assert_same_bits(result, wanted)


@pytest.mark.parametrize("order", ["sequential", "time"])
def test_rows_may_have_any_strides(order: str) -> None:
    """Slices of wider tensors give the bits of their copies."""
    tensors = on_device(drawn((2, 24, 264, 16, 1), torch.bfloat16))
    sliced = dict(tensors)
    for name in ("u", "delta", "z", "B", "C"):
        wide = torch.empty(
            *tensors[name].shape[:-1], 300, dtype=torch.bfloat16, device="cuda"
        )
        sliced[name] = wide[..., 3:267]
        sliced[name].copy_(tensors[name])
    expected = selective_scan("fast", order, **tensors)
    got = selective_scan("fast", order, **sliced)
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


@pytest.mark.parametrize("variant", ["fast", "accurate"])
def test_graph_replay(variant: str) -> None:
    """A graph replayed on new inputs gives what a call gives."""
    tensors = on_device(drawn((2, 64, 512, 16, 1), torch.float16))
    selective_scan(variant, None, **tensors)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, last_state = selective_scan(variant, None, **tensors)
    for seed in range(2):
        torch.manual_seed(seed)
        tensors["u"].copy_(torch.randn_like(tensors["u"]))
        graph.replay()
        expected = selective_scan(variant, None, **tensors)
        assert torch.equal(y, expected[0])
        assert torch.equal(last_state, expected[1])
