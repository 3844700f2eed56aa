"""Overflow is named where it spoils just the outputs that it must."""

from typing import Any

import pytest
import torch
from torch import Tensor

from scancheck.case import make_case
from scancheck.checks.oracle import CaseReport, check_case
from scancheck.checks.range_faults import explain_nonfinite
from scancheck.kernel import Kernel
from scancheck.kernels.faulty.catalog import controls, faulty

KERNELS = {kernel.name: kernel for kernel in (*faulty(), *controls())}
BUGS = {
    "inverse_of_running_product": "inverse_decay",
    "mask_after_exponential": "masked_overflow",
    "softplus_without_threshold": "softplus_overflow",
}


def report_of(bench: Any, kernel: Kernel, seed: int) -> CaseReport:
    """A planted bug of selective_scan on tokens that reset the state."""
    case = make_case(
        "selective_scan",
        {"B": 2, "D": 4, "L": 200, "N": 3},
        recipe="exact_reset",
        seed=seed,
        options={"initial_state": True},
    )
    request = bench.request()
    if kernel.contract is not None:
        request = bench.request("log=diff,structure=chunk(64,sequential,sequential)")
    return check_case(kernel, case, request)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("module", BUGS)
def test_overflows_are_told_apart(bench: Any, module: str, seed: int) -> None:
    """Each of three overflows is named on strong decay, at its chunk size."""
    kernel = KERNELS[f"faulty.selective_scan.{module}"]
    found = explain_nonfinite(kernel, report_of(bench, kernel, seed), [64])
    assert found is not None
    assert found.cause == BUGS[module]


def test_other_gaps_are_not_explained(bench: Any) -> None:
    """NaN at places that no overflow explains is left to other causes."""

    def call(a: Tensor, b: Tensor) -> Any:
        h, state = bench.scan(a, b)
        h = h.clone()
        h[:, ::7] = torch.nan
        return h, state

    report = bench.report(call, bench.case(T=131))
    assert explain_nonfinite(bench.kernel(call), report, [16, 64]) is None


def test_finite_outputs_need_no_explanation(bench: Any) -> None:
    """Where everything is finite, nothing has overflowed."""

    def call(a: Tensor, b: Tensor) -> Any:
        return bench.scan(1.1 * a, b)

    report = bench.report(call, bench.case(T=131))
    assert explain_nonfinite(bench.kernel(call), report, [64]) is None
