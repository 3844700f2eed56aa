"""Chunks of matrix products are not red where they round in an order of their own."""

import pytest

from scancheck.case import Case
from scancheck.checks.oracle import CaseReport, Request, check_case
from scancheck.kernel import Kernel
from scancheck.kernels.models.chunk_catalog import chunk_model
from scancheck.ops import op_named
from scancheck.recipes.case_list import case_list
from scancheck.verdict import Verdict


def cases(kernel: Kernel, dtype: str, recipe: str) -> list[Case]:
    """Those of one recipe in the quick profile."""
    names = frozenset(spec.name for spec in op_named(kernel.op).inputs)
    every = case_list(kernel.op, dtype, accepts=names, chunk=kernel.chunk)
    return [case for case in every if case.recipe == recipe]


def judged(kernel: Kernel, case: Case, cotangents: str | None = None) -> CaseReport:
    """The report of a case under the kernel's own contract."""
    assert kernel.contract is not None
    request = Request(contract=kernel.contract, gradients=cotangents is not None)
    return check_case(kernel, case, request, cotangent_kind=cotangents)


@pytest.mark.parametrize("variant", ["plain", "log_diff", "log_factored"])
def test_scores_may_underflow_before_they_meet_values(variant: str) -> None:
    """Step by step the small state would meet the large number last."""
    kernel = chunk_model("simple_gla", variant)
    for case in cases(kernel, "fp32", "subnormal_state"):
        report = judged(kernel, case, "dense")
        assert {check.verdict for check in report.checks} <= {Verdict.PASS}


def test_rounded_scores_whose_terms_cancel() -> None:
    """Each term of a chunk is rounded, also where their sum, the state, is small."""
    kernel = chunk_model("simple_gla", "log_diff", operands="storage")
    (case,) = (
        case
        for case in cases(kernel, "bf16", "gaussian_slow")
        if dict(case.sizes)["T"] == 1025
    )
    report = judged(kernel, case)
    assert {check.verdict for check in report.checks} == {Verdict.PASS}
    (rho,) = (check.rho for check in report.checks if check.tensor == "o")
    assert rho is not None
    assert 0.5 < rho < 1.5
