"""Step sizes that kernels form otherwise are told by their name."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from scancheck.case import Case, make_case
from scancheck.checks.gradient_faults import explain_gradients
from scancheck.checks.hypotheses import explain
from scancheck.checks.oracle import CaseReport, Request, check_inputs
from scancheck.contract import parse_contract
from scancheck.kernel import Kernel
from scancheck.recipes.build import build
from scancheck.recipes.inputs import cotangents

Steps = Callable[[Tensor, Tensor], Tensor]
Outputs = tuple[Tensor, Tensor]


def in_fp32(dt: Tensor, bias: Tensor) -> Tensor:
    """As it should be."""
    return softplus(dt.float() + bias)


def by_sum(dt: Tensor, bias: Tensor) -> Tensor:
    """log(1 + exp(x)), as kernels without log1p have it."""
    x = dt.float() + bias
    return torch.where(x > 20, x, (1 + x.clamp(max=20).exp()).log())


def in_storage(dt: Tensor, bias: Tensor) -> Tensor:
    """In the dtype of dt."""
    return softplus(dt + bias.to(dt.dtype)).float()


def ssd(steps: Steps, x: Tensor, dt: Tensor, bias: Tensor, *others: Tensor) -> Outputs:
    """The op step by step in fp32; others: A, B and C of one group of keys."""
    (A, B, C), d = others, steps(dt, bias)
    B, C = B.float(), C.float()
    state = x.new_zeros((*x[:, 0].shape, B.shape[-1]), dtype=torch.float32)
    read = []
    for t in range(x.shape[1]):
        drive = d[:, t, :, None, None] * x[:, t, ..., None].float()
        decay = (d[:, t] * A).exp()[..., None, None]
        state = decay * state + drive * B[:, t, :, None]
        read.append((state * C[:, t, :, None]).sum(-1))
    return torch.stack(read, 1).to(x.dtype), state


class BySumBackwards(torch.autograd.Function):
    """Steps in fp32 forwards, and by the sum where a backward pass forms them anew."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Outputs:
        ctx.save_for_backward(*given)
        return ssd(in_fp32, *given)

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> tuple[Tensor, ...]:
        given = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            outputs = ssd(by_sum, *given)
        return torch.autograd.grad(outputs, given, bars)


def report_of(
    call: Callable[..., Outputs], case: Case, *, gradients: bool = False
) -> CaseReport:
    """Of a kernel with the arguments of `ssd`, against steps in order in fp32."""

    def named(
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        dt_bias: Tensor,
        dt_softplus: bool = False,
    ) -> Outputs:
        assert dt_softplus
        return call(x, dt, dt_bias, A, B, C)

    kernel = Kernel(name="tried", op="ssd", call=named, gradients=gradients)
    bars = cotangents(case, "final_state", 1) if gradients else None
    contract = parse_contract("structure=sequential")
    request = Request(contract=contract, gradients=gradients)
    return check_inputs(kernel, case, build(case), request, bars, "final_state")


def case_of(recipe: str, dtype: str) -> Case:
    """Two heads, a bias and softplus."""
    sizes = {"B": 2, "T": 60, "H": 2, "G": 1, "P": 4, "N": 4}
    options = {"dt_bias": True, "dt_softplus": True, "D": False, "z": False}
    return make_case("ssd", sizes, dtype=dtype, recipe=recipe, seed=3, options=options)


@pytest.mark.parametrize(
    ("steps", "recipe", "dtype", "cause"),
    [
        (by_sum, "softplus_tails", "fp32", "softplus_sum"),
        (in_storage, "mixed_time_scales", "bf16", "short_step"),
        (in_storage, "mixed_time_scales", "fp16", "short_step"),
    ],
)
def test_steps_that_are_formed_otherwise(
    steps: Steps, recipe: str, dtype: str, cause: str
) -> None:
    """What they make of the outputs is told; steps in fp32 are right."""
    case = case_of(recipe, dtype)
    right = report_of(partial(ssd, in_fp32), case)
    assert not any(m.wrong.any() for m in right.metrics.values())
    found = explain(report_of(partial(ssd, steps), case), [16])
    assert found is not None
    assert found.cause == cause


def test_small_steps_that_a_backward_pass_loses() -> None:
    """Outputs are right and gradients are those of log(1 + exp(x))."""
    case = case_of("softplus_tails", "fp32")
    right = report_of(partial(ssd, in_fp32), case, gradients=True)
    assert not any(m.wrong.any() for m in right.gradient_metrics.values())
    report = report_of(BySumBackwards.apply, case, gradients=True)
    assert not any(m.wrong.any() for m in report.metrics.values())
    assert any(m.wrong.any() for m in report.gradient_metrics.values())
    found = explain_gradients(report)
    assert found is not None
    assert found.cause == "softplus_sum"
