"""Short formats are told by the digits of what was stored, or by known errors."""

from typing import Any

import pytest
import torch
from torch import Tensor

from scancheck.checks.digits import explain_digits
from scancheck.checks.hypotheses import explain
from scancheck.checks.operand_rounding import explain_operands
from scancheck.kernels.faulty.catalog import faulty
from scancheck.kernels.faulty.short_formats import rounded, rounded_to_tf32

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def test_tf32_keeps_ten_fraction_bits() -> None:
    """Half of what is dropped rounds up; what fits stays."""
    x = torch.tensor([1.0, 1 + 2.0**-10, 1 + 2.0**-11, 1 + 2.0**-12, -3.0 - 2.0**-10])
    want = [1.0, 1 + 2.0**-10, 1 + 2.0**-10, 1.0, -3.0 - 2.0**-9]
    assert rounded_to_tf32(x).tolist() == want


@pytest.mark.parametrize("name", FORMATS)
def test_short_outputs_and_states_are_told_apart(bench: Any, name: str) -> None:
    """What was stored short is named, with the format that it fits."""
    case = bench.case(T=131, initial_state=True)

    def short_output(a: Tensor, b: Tensor, initial_state: Tensor) -> Any:
        h, state = bench.scan(a, b, initial_state)
        return rounded(h, FORMATS[name]), state

    def short_state(a: Tensor, b: Tensor, initial_state: Tensor) -> Any:
        h, state = bench.scan(a, b, initial_state)
        return h, rounded(state, FORMATS[name])

    for call, cause in ((short_output, "short_output"), (short_state, "short_state")):
        found = explain_digits(bench.report(call, case))
        assert found is not None
        assert found.cause == cause
        assert name in found.detail


def test_small_integers_are_no_evidence(bench: Any) -> None:
    """Values that any format holds say nothing of the one they were stored in."""
    report = bench.report(
        lambda a, b: bench.scan(a, b + 1.0), bench.case("exact_dyadic", T=131)
    )
    assert report.verdict == "FAIL"
    assert explain_digits(report) is None


@pytest.mark.parametrize("seed", range(1, 6))
def test_rounded_operands_are_no_short_state(bench: Any, seed: int) -> None:
    """TF32 operands leave the errors of their decays; a short state does not."""
    case = bench.case(T=200, D=16, seed=seed, initial_state=True)
    calls = {kernel.name.split(".")[-1]: kernel.call for kernel in faulty()}
    found = explain_operands(bench.report(calls["tf32_operands_claim_fp32"], case))
    assert found is not None
    assert found.cause == "short_compute"
    assert "tf32" in found.detail
    report = bench.report(calls["state_in_fp16_claims_fp32"], case)
    assert explain_operands(report) is None


def test_compensation_without_decay_is_told(bench: Any) -> None:
    """Lost roundings that do not decay are told from those of a plain scan."""
    calls = {kernel.name.split(".")[-1]: kernel.call for kernel in faulty()}
    case = bench.case(T=200, D=16, initial_state=True)
    full = "comp=full,structure=sequential"
    report = bench.report(calls["compensation_not_decayed"], case, full)
    found = explain(report, [])
    assert found is not None
    assert found.cause == "compensation"
    assert explain(bench.report(bench.scan, case, full), []) is None
