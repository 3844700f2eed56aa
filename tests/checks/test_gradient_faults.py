"""Known faults of a backward pass are named by what they make of the gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor

from scancheck.case import make_case
from scancheck.checks.gradient_faults import explain_gradients
from scancheck.checks.oracle import check_case
from scancheck.diagnosis import CAUSES
from scancheck.kernels.faulty.catalog import controls, faulty

KERNELS = {kernel.name: kernel for kernel in (*faulty(), *controls())}
SELECTIVE = (
    "skip_gradient_missing",
    "step_gradient_misses_drive",
    "silu_gradient_is_sigmoid",
    "A_gradient_of_first_row",
    "gradient_sums_in_bf16",
    "initial_state_gradient_dropped",
)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("module", SELECTIVE)
def test_faults_of_selective_scan_are_told_apart(
    bench: Any, module: str, dtype: str
) -> None:
    """Each planted bug of the backward is named as itself, on ordinary data."""
    kernel = KERNELS[f"faulty.selective_scan.{module}"]
    case = make_case(
        "selective_scan",
        {"B": 3, "D": 4, "L": 131, "N": 3},
        dtype=dtype,
        recipe="gaussian_slow",
        seed=5,
        options={"initial_state": True},
    )
    request = bench.request(gradients=True)
    found = explain_gradients(check_case(kernel, case, request, cotangent_kind="dense"))
    assert found is not None
    assert found.cause == kernel.symptom
    assert found.cause in CAUSES


@pytest.mark.parametrize(
    ("module", "recipe"),
    [
        ("adjoint_in_bf16", "gaussian_slow"),
        ("gate_gradient_zero_where_clamped", "mixed_time_scales"),
        ("gate_gradient_total_minus_prefix", "mixed_time_scales"),
    ],
)
def test_faults_of_linear_scan_are_told_apart(
    bench: Any, module: str, recipe: str
) -> None:
    """Short adjoints, a clamp and a cancelling sum leave traces of their own."""
    kernel = KERNELS[f"faulty.linear_scan.{module}"]
    case = bench.case(recipe, T=200, initial_state=True, seed=3)
    request = bench.request(gradients=True)
    report = check_case(kernel, case, request, cotangent_kind="dense")
    found = explain_gradients(report)
    assert found is not None
    assert found.cause == kernel.symptom


class Skewed(torch.autograd.Function):
    """The identity with a gradient that is off by one per cent."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """A copy."""
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> Any:
        """The gradient times 1.01."""
        return 1.01 * bars[0]


def test_other_faults_have_no_explanation(bench: Any) -> None:
    """A gradient that is off by a factor is none of the known faults."""

    def call(a: Tensor, b: Tensor, initial_state: Tensor) -> Any:
        own: Any = Skewed
        return bench.scan(own.apply(a), own.apply(b), initial_state)

    case = bench.case(T=65, initial_state=True)
    report = bench.report(call, case, bars="dense")
    assert report.verdict == "FAIL"
    assert explain_gradients(report) is None


def test_right_gradients_need_no_explanation(bench: Any) -> None:
    """Where no gradient is wrong, no fault fits."""
    report = bench.report(bench.scan, bench.case(T=65), bars="dense")
    assert explain_gradients(report) is None
