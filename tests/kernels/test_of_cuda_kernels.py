"""Models by the name of their CUDA kernel: outputs, gradients, and what differs."""

from functools import partial

import pytest
import torch

from scancheck.kernels.cuda.catalog import kernels
from scancheck.kernels.models.cuda_selective_scan import kept_states, selective_scan
from scancheck.kernels.models.of_cuda_kernels import (
    Device,
    different,
    is_reproducible,
    results,
)

Tensors = dict[str, torch.Tensor]


def drawn(channels: int = 5, steps: int = 45) -> tuple[Tensors, list[torch.Tensor]]:
    """A small selective_scan with all inputs, and cotangents."""
    draw = torch.Generator().manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=draw)

    row, keys = (2, channels, steps), (2, 1, 3, steps)
    tensors = {
        "u": normal(*row),
        "delta": normal(*row) - 2,
        "A": -torch.exp(normal(channels, 3)),
        "B": normal(*keys),
        "C": normal(*keys),
        "D": normal(channels),
        "z": normal(*row),
        "delta_bias": normal(channels),
        "initial_state": normal(2, channels, 3),
    }
    return tensors, [normal(*row), normal(2, channels, 3)]


@pytest.mark.parametrize("variant", ["reproducible", "accurate"])
def test_kept_states_are_last_states_of_the_steps_before(variant: str) -> None:
    """The first is the initial state; each other one ends a shorter scan."""
    tensors, _ = drawn()
    scanned = {k: x for k, x in tensors.items() if k not in ("D", "z")}
    kept = kept_states(variant, 16, **scanned, delta_softplus=True)
    assert kept.shape == (2, 3, 5, 3)
    assert torch.equal(kept[:, 0], tensors["initial_state"])
    for edge in (1, 2):
        begin = {
            k: x[..., : 16 * edge] if k in ("u", "delta", "B", "C") else x
            for k, x in scanned.items()
        }
        _, last = selective_scan("sequential", variant, **begin, delta_softplus=True)
        assert torch.equal(kept[:, edge], last)


@pytest.mark.parametrize("size", [(0, 5, 45), (2, 5, 0)])
def test_kept_states_of_nothing(size: tuple[int, int, int]) -> None:
    """Without batch rows or steps there are as many as there would be."""
    batch, channels, steps = size
    u, keys = torch.zeros(size), torch.zeros(batch, 3, steps)
    kept = kept_states("reproducible", 16, u, u, torch.zeros(channels, 3), keys, keys)
    assert kept.shape == (batch, -(-steps // 16), channels, 3)


def test_gradients_are_those_of_the_function() -> None:
    """Near autograd's in fp64 for the polynomial and the table, with other bits."""
    tensors, bars = drawn()
    exact = {k: x.double().requires_grad_() for k, x in tensors.items()}
    d = torch.nn.functional.softplus(
        exact["delta"] + exact["delta_bias"][:, None], threshold=100
    )
    h, outputs = exact["initial_state"], []
    for t in range(d.shape[-1]):
        decay = torch.exp(d[:, :, t, None] * exact["A"])
        h = decay * h + (d * exact["u"])[:, :, t, None] * exact["B"][..., t]
        outputs.append((exact["C"][..., t] * h).sum(-1))
    y = torch.stack(outputs, -1) + exact["D"][:, None] * exact["u"]
    y = y * torch.nn.functional.silu(exact["z"])
    wanted = torch.autograd.grad(
        [y, h], list(exact.values()), [bar.double() for bar in bars]
    )
    found = {
        variant: results(
            f"cuda.selective_scan.sequential.{variant}",
            tensors,
            bars,
            delta_softplus=True,
        ).gradients
        for variant in ("reproducible", "tabulated")
    }
    for name, want in zip(exact, wanted, strict=True):
        for gradients in found.values():
            error = (gradients[name].double() - want).norm() / want.norm()
            assert float(error) < 1e-5, name
    assert bool(different(found["tabulated"]["u"], found["reproducible"]["u"]).any())


def test_order_of_sums_is_that_of_the_chosen_kernel() -> None:
    """What the tensors' layout and the device choose shows in the bits."""
    tensors, bars = drawn(channels=96, steps=64)
    name = "cuda.selective_scan.sequential.reproducible"
    scan = partial(results, name, cotangents=bars, delta_softplus=True)
    rows = scan(inputs=tensors).gradients["B"]
    steps = scan(inputs=tensors, device=Device(shared=50_000)).gradients["B"]
    assert bool(different(rows, steps).any())
    assert float((rows - steps).norm() / steps.norm()) < 1e-5
    wide = torch.zeros(2, 96, 65)
    wide[..., 1:] = tensors["u"]
    apart = tensors | {"u": wide[..., 1:]}
    assert not different(scan(inputs=apart).gradients["B"], steps).any()


def test_every_reproducible_kernel_has_its_model() -> None:
    """Those that are not fast, of both ops, by their registered names."""
    names = [kernel.name for kernel in kernels()]
    modelled = [name for name in names if is_reproducible(name)]
    assert {name.split(".")[3] for name in names if name not in modelled} == {
        "fast",
        "fast_segsum",
    }
    b = torch.ones(1, 3, 2)
    for name in modelled:
        if name.startswith("cuda.linear_scan"):
            bars = [torch.ones(1, 3, 2), torch.zeros(1, 2)]
            found = results(name, {"g": torch.zeros(1, 3, 2), "b": b}, bars)
            assert found.outputs["h"][0, :, 0].tolist() == [1, 2, 3]
            assert found.tensors()["d b"][0, :, 0].tolist() == [3, 2, 1]


def test_differences_are_those_of_bits() -> None:
    """Zeros of two signs differ, NaNs do not; other dtypes and shapes are refused."""
    got, expected = (
        torch.tensor([0.0, torch.nan, 1]),
        torch.tensor([-0.0, -torch.nan, 1]),
    )
    assert different(got, expected).tolist() == [True, False, False]
    for other in (expected.half(), expected[:2]):
        with pytest.raises(ValueError, match="expected torch"):
            different(got, other)
