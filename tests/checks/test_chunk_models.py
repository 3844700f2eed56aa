"""Chunks of matrix products are not red where they round in an order of their own."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from scancheck.case import Case, make_case
from scancheck.checks.experiments import likely_cause
from scancheck.checks.oracle import CaseReport, Request, check_case
from scancheck.checks.relations import relation_reports
from scancheck.contract import parse_contract
from scancheck.kernel import Kernel
from scancheck.kernels.models.chunk_catalog import chunk_model
from scancheck.ops import op_named
from scancheck.recipes.case_list import case_list
from scancheck.runner import accepted_parameters
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


def claiming_fp32(kernel: Kernel, **changes: Any) -> Kernel:
    """The kernel under a contract that says nothing of shorter operands."""
    assert kernel.contract is not None
    contract = replace(kernel.contract, operands="compute", accumulate="nearest")
    return replace(kernel, contract=contract, **changes)


def cause_of_state(kernel: Kernel, recipe: str) -> str:
    """What the final state of the recipe's first case is found to suffer from."""
    report = judged(kernel, cases(kernel, "fp32", recipe)[0])
    (check,) = (c for c in report.checks if c.tensor == "final_state")
    assert check.verdict is Verdict.FAIL
    return likely_cause(kernel, report, check)[0]


RECIPES = ("impulse_at_chunk_edge", "gaussian_slow")


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("accumulate", ["nearest", "truncate"])
@pytest.mark.parametrize("op", ["linear_attention", "lightning_attention"])
def test_tf32_operands_are_no_short_state(
    op: str, accumulate: str, recipe: str
) -> None:
    """An impulse's state has as many digits as fp16 then; its errors tell."""
    variant = "plain" if op == "linear_attention" else "log_diff"
    kernel = chunk_model(op, variant, operands="tf32", accumulate=accumulate)
    assert cause_of_state(claiming_fp32(kernel), recipe) == "short_compute"


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_short_state_is_no_tf32_operand(dtype: torch.dtype, recipe: str) -> None:
    """What is stored short in chunks of matrix products keeps its name."""
    kernel = chunk_model("simple_gla", "log_diff")

    def call(**tensors: torch.Tensor) -> Any:
        o, state = kernel.call(**tensors)
        return o, state.to(dtype).float()

    found = cause_of_state(claiming_fp32(kernel, call=call), recipe)
    assert found == "short_state"


def decayed_values_in_fp16(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    initial_state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """simple_gla in one chunk, values rounded to fp16 once they are decayed."""
    gates = g.double().cumsum(1)
    decay = (gates[:, :, None] - gates[:, None]).exp()  # [B, t, s, HV]
    decay *= torch.ones(g.shape[1], g.shape[1]).tril()[None, :, :, None]
    shared = v.shape[2] // k.shape[2]
    q, k = (x.double().repeat_interleave(shared, 2) for x in (q, k))
    scores = torch.einsum("bthk,bshk->btsh", q, k) * decay * k.shape[3] ** -0.5
    start = initial_state.double()
    first = torch.einsum("bthk,bhkv->bthv", q, start) * k.shape[3] ** -0.5
    o = torch.einsum("btsh,bshv->bthv", scores, v.double())
    o = o + gates.exp()[..., None] * first
    kept = (v.double() * decay[:, -1, :, :, None]).half().double()
    state = torch.einsum("bshk,bshv->bhkv", k, kept)
    state = state + gates[:, -1, :, None, None].exp() * start
    return o.half(), state.float()


@pytest.mark.parametrize("seed", [1, 2])
def test_operands_in_fp16_scale_within_their_budget(seed: int) -> None:
    """Eight times the drives is not eight times an operand that was subnormal."""
    contract = parse_contract("structure=chunk(256),log=diff,operands=storage")
    kernel = Kernel(
        name="own", op="simple_gla", call=decayed_values_in_fp16,
        dtypes=("fp16",), contract=contract,
    )  # fmt: skip
    case = make_case(
        kernel.op, {"B": 1, "T": 131, "H": 2, "HV": 4, "K": 5, "V": 4},
        dtype="fp16", recipe="gaussian_slow", seed=seed,
        options={"chunk": 64, "initial_state": True},
    )  # fmt: skip
    op, request = op_named(kernel.op), Request(contract=contract)
    accepted = accepted_parameters(kernel, op)
    reports = relation_reports(
        kernel, op, [case], request, accepted, ("o", "final_state")
    )
    found = {report.checks[0].check: report for report in reports}
    assert found["relation:scaling"].verdict is Verdict.PASS
    whole = found["relation:scaling"].outcome.outputs["final_state"]
    plain = judged(kernel, case).outcome.outputs["final_state"]
    assert not (whole == 8.0 * plain).all()


def test_chunks_with_a_short_state_may_be_cut_anywhere() -> None:
    """A call that goes on where another ended has stored its state once more."""
    kernel = chunk_model("simple_gla", "log_diff", operands="storage", state="bf16")
    assert kernel.contract is not None
    (case, *_) = cases(kernel, "fp32", "decay_near_one")
    op, request = op_named(kernel.op), Request(contract=kernel.contract)
    accepted = accepted_parameters(kernel, op)
    for seed in range(3):
        one = replace(case, seed=case.seed + seed)
        for report in relation_reports(
            kernel, op, [one], request, accepted, ("o", "final_state")
        ):
            assert report.verdict is Verdict.PASS, report.checks[0]
