"""The CPU model of the CUDA linear_scan, on data that no operation rounds."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scancheck.kernels.models.cuda_linear_scan import (
    BACKWARD_ORDER,
    ORDERS,
    VARIANTS,
    Order,
    linear_scan,
)

# Small, so that short scans have many rows, chunks and groups.
SMALL = {
    "in_order": Order(rows=4, steps=2),
    "doubling": Order(rows=4, steps=2, doubling=True),
    "carry_tree": Order(rows=4, steps=2, groups=3),
    "stepwise": Order(rows=1, steps=8, groups=ORDERS["sequential"].groups),
}
BACKWARDS = Order(rows=2, steps=4)
LENGTHS = (1, 2, 3, 7, 8, 9, 16, 17, 63, 100)
Tensors = dict[str, torch.Tensor]


def exact(length: int, *, logs: bool, seed: int = 0) -> Tensors:
    """Decays -1, 0 and 1, or the logarithms of 0 and 1, and small integers."""
    draw = torch.Generator().manual_seed(seed)
    shape = (2, length, 3)
    kept = torch.rand(shape, generator=draw) < 0.9
    signs = torch.where(torch.rand(shape, generator=draw) < 0.3, -1.0, 1.0)
    gate = torch.where(kept, 0.0, -math.inf) if logs else kept * signs
    b = torch.randint(-3, 4, shape, generator=draw).float()
    initial = torch.randint(-3, 4, (2, 3), generator=draw).float()
    return {"g" if logs else "a": gate, "b": b, "initial_state": initial}


def leaves(tensors: Tensors) -> Tensors:
    """Copies that collect gradients."""
    return {name: x.clone().requires_grad_() for name, x in tensors.items()}


def loop(tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence as it is defined."""
    state = tensors["initial_state"]
    decay = tensors["a"] if "a" in tensors else tensors["g"].exp()
    states = []
    for t in range(decay.shape[1]):
        state = decay[:, t] * state + tensors["b"][:, t]
        states.append(state)
    return torch.stack(states, 1), state


def modelled(
    variant: str, order: Order, tensors: Tensors, backwards: Order = BACKWARDS
) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's outputs."""
    given_ = {"a": None, "g": None} | tensors
    return linear_scan(variant, order, backwards, **given_)


@pytest.mark.parametrize("logs", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("order", SMALL)
def test_exact_data_give_exact_outputs(order: str, variant: str, logs: bool) -> None:
    """Every order and variant gives the loop's outputs where nothing rounds."""
    if variant == "segsum" and not logs:
        pytest.skip("sums of logarithms take logarithms")
    for length in LENGTHS:
        tensors = exact(length, logs=logs)
        for one, other in zip(
            modelled(variant, SMALL[order], tensors), loop(tensors), strict=True
        ):
            assert torch.equal(one, other), length


@pytest.mark.parametrize("variant", ["plain", "kahan", "full"])
@pytest.mark.parametrize("order", SMALL)
def test_exact_data_give_exact_gradients(order: str, variant: str) -> None:
    """Gradients are autograd's through the loop, to all inputs, from both outputs."""
    for length in LENGTHS:
        one, other = (leaves(exact(length, logs=False)) for _ in range(2))
        draw = torch.Generator().manual_seed(length)
        outputs = modelled(variant, SMALL[order], one)
        bars = [torch.randint(-3, 4, x.shape, generator=draw).float() for x in outputs]
        torch.autograd.backward(outputs, bars)
        torch.autograd.backward(loop(other), bars)
        for name, leaf in one.items():
            assert torch.equal(leaf.grad, other[name].grad), (length, name)


@pytest.mark.parametrize("algorithm", ORDERS)
def test_later_tokens_change_no_bit_before_them(algorithm: str) -> None:
    """States up to a token are those of the scan that ends there."""
    draw = torch.Generator().manual_seed(1)
    a, b = torch.rand(1, 600, 2, generator=draw), torch.randn(1, 600, 2, generator=draw)
    tensors = {"a": a, "b": b, "initial_state": torch.ones(1, 2)}
    if ORDERS[algorithm].groups > 0:
        pytest.skip("the tree of chunks depends on their number")
    whole, _ = modelled("full", ORDERS[algorithm], tensors, BACKWARD_ORDER)
    for end in (1, 15, 16, 17, 255, 256, 257, 599):
        part = {n: x[:, :end] for n, x in tensors.items() if n != "initial_state"}
        part["initial_state"] = tensors["initial_state"]
        h, final = modelled("full", ORDERS[algorithm], part, BACKWARD_ORDER)
        assert torch.equal(h, whole[:, :end])
        assert torch.equal(final, h[:, -1])


@given(st.integers(0, 40), st.integers(0, 2**16), st.sampled_from(sorted(SMALL)))
def test_full_is_as_near_as_fp32_can_be(length: int, seed: int, order: str) -> None:
    """With slow decays of one sign, full compensation rounds once in all."""
    draw = torch.Generator().manual_seed(seed)
    a = 1 - torch.rand(1, length, 1, generator=draw) / 1000
    b = torch.rand(1, length, 1, generator=draw)
    tensors = {"a": a, "b": b, "initial_state": torch.rand(1, 1, generator=draw)}
    h, _ = modelled("full", SMALL[order], tensors)
    if length:
        right, _ = loop({name: x.double() for name, x in tensors.items()})
        # Half an ulp, and what is left of second order.
        assert bool(((h - right).abs() <= right * (2.0**-24 + 2.0**-38)).all())


def test_empty_scans() -> None:
    """Without tokens the final state is the initial one, and so is its gradient."""
    tensors = leaves(
        {
            "a": torch.ones(2, 0, 3),
            "b": torch.ones(2, 0, 3),
            "initial_state": torch.rand(2, 3),
        }
    )
    h, final = modelled("plain", SMALL["in_order"], tensors)
    (2 * final).sum().backward()
    assert h.shape == (2, 0, 3)
    assert torch.equal(final, tensors["initial_state"])
    assert torch.equal(tensors["initial_state"].grad, torch.full((2, 3), 2.0))
