"""The planted bugs whose gradients alone are wrong, and the control's gradients.

All numbers involved are positive, so that nothing cancels and every gradient is right
to within one unit roundoff for each rounding on its way. The truth is autograd through
a loop over tokens in float64.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from scancheck.formats import FP32, FloatArray
from scancheck.kernels.faulty import catalog, chunked_torch

CHUNK = chunked_torch.CHUNK
LONG = 3 * CHUNK + 5
TORCH = {"fp32": torch.float32, "fp64": torch.float64}
KERNELS = {
    kernel.name.rpartition(".")[2]: kernel
    for kernel in catalog.faulty() + catalog.controls()
    if kernel.op == "linear_scan"
}


def positive_gradients(
    scan: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    steps: int,
    dtype: str,
    weigh_state: bool,
) -> dict[str, FloatArray]:
    """Gradients of linear_scan's inputs, all numbers involved being positive."""
    rng = np.random.default_rng(3)
    shape = (2, steps, 3)
    leaves = {
        "a": torch.tensor(rng.uniform(0.98, 1.0, shape)),
        "b": torch.tensor(rng.uniform(0.5, 1.0, shape)),
        "initial_state": torch.tensor(rng.uniform(0.5, 1.0, (2, 3))),
    }
    weights = torch.tensor(rng.uniform(0.5, 1.0, shape)).float().to(TORCH[dtype])
    leaves = {
        name: x.float().to(TORCH[dtype]).requires_grad_() for name, x in leaves.items()
    }
    h, final_state = scan(**leaves)
    total = (h * weights).sum()
    if weigh_state:
        total = total + 3 * final_state.sum()
    torch.autograd.backward(total)
    return {name: gradient_of(x) for name, x in leaves.items()}


def gradient_of(leaf: torch.Tensor) -> FloatArray:
    """The gradient as float64; zeros where nothing flowed back."""
    gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    return gradient.double().numpy()


def torch_loop(
    *, a: torch.Tensor, b: torch.Tensor, initial_state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The truth for autograd, token by token."""
    state, states = initial_state, []
    for decay, drive in zip(a.unbind(1), b.unbind(1), strict=True):
        state = decay * state + drive
        states.append(state)
    return torch.stack(states, 1), state


def wrong_gradients(module: str, steps: int, weigh_state: bool) -> set[str]:
    """Inputs of linear_scan whose gradient is beyond the rounding bound."""
    got = positive_gradients(KERNELS[module].call, steps, "fp32", weigh_state)
    truth = positive_gradients(torch_loop, steps, "fp64", weigh_state)
    # Up to 3 roundings a token forward (state, product, carry), as many back, and the
    # few where chunks, weights and the two outputs meet.
    bound = (6 * steps + 32) * FP32.unit_roundoff
    return {
        name
        for name, x in truth.items()
        if (np.abs(got[name] - x) > bound * np.abs(x)).any()
    }


@pytest.mark.parametrize("weigh_state", [False, True])
@pytest.mark.parametrize("steps", [1, 2, CHUNK, LONG])
def test_control_has_right_gradients(steps: int, weigh_state: bool) -> None:
    """Every gradient of the control is within the bound."""
    assert wrong_gradients("chunked_reference", steps, weigh_state) == set()


@pytest.mark.parametrize("weigh_state", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 3, CHUNK, LONG])
def test_combine_gets_only_the_gate_gradient_wrong(
    steps: int, weigh_state: bool
) -> None:
    """The gradient of the decay is wrong from T = 2 on, the others never."""
    expected = {"a"} if steps >= 2 else set()
    assert (
        wrong_gradients("combine_gate_gradient_wrong", steps, weigh_state) == expected
    )


@pytest.mark.parametrize("steps", [1, CHUNK, LONG])
def test_dropped_state_gradient(steps: int) -> None:
    """All gradients miss the final state's part, and are right without one."""
    module = "final_state_gradient_dropped"
    assert wrong_gradients(module, steps, False) == set()
    assert wrong_gradients(module, steps, True) == {"a", "b", "initial_state"}
