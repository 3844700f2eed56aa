"""Gradients of somebody's kernel, and the ways in which it can fail to give them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from scancheck.formats import FloatArray
from scancheck.kernel import Kernel
from scancheck.ops import OPS
from scancheck.recipes.inputs import Inputs
from scancheck.runner import Outcome, execute

SHAPE = (1, 4, 2)
STATE = (1, 2)
DENSE = {"h": np.full(SHAPE, 2.0), "final_state": np.full(STATE, 8.0)}


def run(call: Callable[..., Any], cotangents: dict[str, FloatArray] = DENSE) -> Outcome:
    """The outcome of a linear_scan callable on ones and twos."""
    tensors = {"a": np.full(SHAPE, 3.0), "b": np.ones(SHAPE)}
    kernel = Kernel(name="tried", op="linear_scan", call=call)
    given = Inputs(tensors=tensors, switches={})
    return execute(kernel, OPS["linear_scan"], given, "fp32", cotangents=cotangents)


def kind(outcome: Outcome) -> str | None:
    """The kind of the outcome's problem."""
    return outcome.problem.kind if outcome.problem else None


def test_cotangents_of_all_outputs_add_up() -> None:
    """Each output is pulled back from its own cotangent."""
    outcome = run(lambda *, a, b: (a * b, b[:, -1] * 1.0))
    assert outcome.problem is None
    assert (outcome.gradients["a"] == 2.0).all()
    assert (outcome.gradients["b"][:, :-1] == 6.0).all()
    assert (outcome.gradients["b"][:, -1] == 14.0).all()


def test_detached_output_contributes_zero() -> None:
    """A state without a graph is no problem here; its gradient is simply missing."""

    def dropped(*, a: Tensor, b: Tensor) -> Any:
        return a * b, b[:, -1].detach().clone()

    outcome = run(dropped)
    assert outcome.problem is None
    assert (outcome.gradients["b"] == 6.0).all()
    alone = run(dropped, {"final_state": DENSE["final_state"]})
    assert alone.problem is None
    assert alone.missing_gradients == ("a", "b")
    assert not alone.gradients["b"].any()


def test_unused_input_has_a_zero_gradient() -> None:
    """None from autograd is zero, and noted."""
    outcome = run(lambda *, a, b: b * 1.0)
    assert outcome.problem is None
    assert outcome.missing_gradients == ("a",)
    assert not outcome.gradients["a"].any()
    assert outcome.gradients["a"].shape == SHAPE


def test_kernel_without_graph_is_not_differentiable() -> None:
    """No grad_fn on any output is named; the outputs are still there to judge."""
    outcome = run(lambda *, a, b: (a * b).detach())
    assert kind(outcome) == "not_differentiable"
    assert outcome.gradients == {}
    assert "h" in outcome.outputs


def test_kernel_that_cannot_take_leaves_is_not_differentiable() -> None:
    """A call that raises only with gradients is told as such, with its place."""
    outcome = run(lambda *, a, b: torch.from_numpy(a.numpy() * b.numpy()))
    assert kind(outcome) == "not_differentiable"
    assert outcome.problem is not None
    assert "with inputs that require gradients" in outcome.problem.message
    assert "test_execute_gradients.py" in outcome.problem.message
    assert "h" in outcome.outputs


class BackwardRaises(torch.autograd.Function):
    """A product whose backward was never written."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        """The product."""
        return a * b

    @staticmethod
    def backward(ctx: Any, bar: Tensor) -> Any:
        """Not there."""
        raise NotImplementedError("no backward yet")


class BackwardWrites(torch.autograd.Function):
    """A product whose backward scales what it was given in place."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        """The product."""
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, bar: Tensor) -> Any:
        """Right values, but the saved input is overwritten."""
        a, b = ctx.saved_tensors
        gradients = bar * b, bar * a
        b.detach().mul_(2.0)
        return gradients


class BackwardWritesCotangent(BackwardWrites):
    """A product whose backward scans in the cotangent itself."""

    @staticmethod
    def backward(ctx: Any, bar: Tensor) -> Any:
        """Right values, but the cotangent is overwritten."""
        a, b = ctx.saved_tensors
        gradients = bar * b, bar * a
        bar.mul_(2.0)
        return gradients


class BackwardDiffers(BackwardWrites):
    """A product with noise in the gradient of b."""

    @staticmethod
    def backward(ctx: Any, bar: Tensor) -> Any:
        """The gradient of a is right."""
        a, b = ctx.saved_tensors
        return bar * b, bar * a + torch.rand_like(a)


def test_raising_backward_is_data() -> None:
    """What a backward raises is told in one line with its place."""
    outcome = run(lambda *, a, b: BackwardRaises.apply(a, b))
    assert kind(outcome) == "backward_raised"
    assert outcome.problem is not None
    assert outcome.problem.message.startswith(
        "its backward raised NotImplementedError: no backward yet "
        "(test_execute_gradients.py:"
    )
    assert outcome.gradients == {}
    assert "h" in outcome.outputs


def test_backward_that_writes_an_input_is_seen() -> None:
    """An input changed in backward alone is named."""
    outcome = run(lambda *, a, b: BackwardWrites.apply(a, b))
    assert kind(outcome) == "input_changed"
    assert outcome.changed_inputs == ("b",)


def test_backward_that_writes_the_cotangent_is_seen() -> None:
    """The cotangent belongs to the caller; a backward that changes it is named."""
    outcome = run(lambda *, a, b: BackwardWritesCotangent.apply(a, b))
    assert kind(outcome) == "input_changed"
    assert outcome.problem is not None
    assert "the cotangent of h" in outcome.problem.message
    assert outcome.changed_inputs == ()


def test_gradients_that_differ_between_runs_are_marked() -> None:
    """Repeated gradients are compared bit by bit, each by itself."""
    outcome = run(lambda *, a, b: BackwardDiffers.apply(a, b))
    assert outcome.problem is None
    assert outcome.gradient_differs["b"].all()
    assert not outcome.gradient_differs["a"].any()


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64"])
def test_gradients_come_back_in_every_dtype(dtype: str) -> None:
    """Cotangents have the dtype of their output, gradients that of their input."""

    def scan(*, a: Tensor, b: Tensor, initial_state: Tensor) -> Any:
        return a * b, initial_state * 2.0

    tensors = {"a": np.full(SHAPE, 3.0), "b": np.ones(SHAPE)}
    tensors["initial_state"] = np.ones(STATE)
    outcome = execute(
        Kernel(name="tried", op="linear_scan", call=scan),
        OPS["linear_scan"],
        Inputs(tensors=tensors, switches={}),
        dtype,
        cotangents=DENSE,
    )
    assert outcome.problem is None
    assert (outcome.gradients["initial_state"] == 16.0).all()
    assert (outcome.gradients["b"] == 6.0).all()
