"""Ops whose state has several parts, or that step more than once a token, packed."""

from dataclasses import replace
from inspect import signature
from typing import Any

import pytest
import torch

from scancheck.case import make_case
from scancheck.checks.oracle import Request, check_case
from scancheck.contract import parse_contract
from scancheck.ops import op_named
from scancheck.registry import resolve_target

REQUEST = Request(contract=parse_contract("structure=sequential"), gradients=True)
SIZES = {
    "normalized_linear_attention": {"H": 2, "HV": 2, "K": 3, "V": 5},
    "gated_delta_product": {"H": 2, "M": 2, "K": 3, "V": 5},
}
CALLS = [
    {"cu_seqlens": (0, 4, 4, 5, 11)},
    {"cu_seqlens": (0, 4, 4, 5, 11), "reverse": True},
]


@pytest.mark.parametrize("options", CALLS, ids=["packed", "packed_in_reverse"])
@pytest.mark.parametrize("op", SIZES)
def test_models_pass_and_a_wrong_boundary_does_not(
    op: str, options: dict[str, object]
) -> None:
    """The step model takes cu_seqlens; one whose sequence begins late is red."""
    (kernel,) = resolve_target(f"model.{op}.sequential.plain", None)
    sizes = {"B": 1, "T": 11} | SIZES[op]
    case = make_case(op, sizes, recipe="gaussian_slow", seed=3, options=options)
    right = check_case(kernel, case, REQUEST, cotangent_kind="dense")
    assert right.verdict == "PASS", right.checks
    assert right.gradient_metrics.keys() == right.inputs.tensors.keys()

    def late(**given: Any) -> Any:
        return kernel.call(**given | {"cu_seqlens": torch.tensor([0, 5, 5, 5, 11])})

    late.__signature__ = signature(kernel.call)  # type: ignore[attr-defined]
    wrong = check_case(replace(kernel, call=late), case, REQUEST)
    red = {check.tensor for check in wrong.checks if check.verdict == "FAIL"}
    assert red == {spec.name for spec in op_named(op).outputs}
