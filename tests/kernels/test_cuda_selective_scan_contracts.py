"""The CPU model of the CUDA selective_scan, judged under the contracts of the kernels.

It has the kernels' bits, so what it shows of a contract is true of the device.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from scancheck.contract import Contract
from scancheck.gate import verify
from scancheck.kernel import Kernel
from scancheck.kernels.cuda import selective_scan as launcher
from scancheck.kernels.cuda import selective_scan_backward_instances as instances
from scancheck.kernels.cuda.selective_scan_kernels import contract, kernels
from scancheck.kernels.models.cuda_selective_scan_backward import Order
from scancheck.kernels.models.cuda_selective_scan_gradients import differentiable

SHARED = 232_448
"""Bytes of shared memory of a block on sm_90."""


def backward_order(tensors: dict[str, torch.Tensor | None], variant: str) -> Order:
    """That of the kernel which the launcher would choose on an H200."""
    u = tensors["u"]
    assert u is not None
    problem = launcher.problem_of(tensors, SHARED)
    chosen = instances.chosen(problem, launcher.DTYPES[u.dtype], variant)
    rows = "rows" in chosen.expression
    return Order(
        rows=rows,
        edge_steps=chosen.edge_steps,
        lanes=4 if rows else 128 // chosen.channels,
        warps=chosen.threads // 32,
    )


def modelled(
    variant: str,
    order: str,
    *,
    u: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    delta_softplus: bool = False,
) -> Any:
    """As the kernels are called."""
    tensors = {
        "u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z,
        "delta_bias": delta_bias, "initial_state": initial_state,
    }  # fmt: skip
    how = order, variant, backward_order(tensors, variant)
    return differentiable(*how, tensors, delta_softplus)


def kernel(variant: str, order: str = "sequential") -> Kernel:
    """The model under the contract of the kernel that it has the bits of."""
    return Kernel(
        name=f"model of cuda.selective_scan.{order}.{variant}",
        op="selective_scan",
        call=partial(modelled, variant, order),
        contract=contract(variant, order),
        dtypes=("fp32", "fp16", "bf16"),
        gradients=True,
        layouts=("keys=grouped", "keys=constant"),
        edge_sizes=True,
        devices=("cpu",),
    )


TELESCOPING = "selective_scan-fp32-telescoping_cancellation-2x4x2x129x16-f5794d0026"


def red_tensors(variant: str, claim: Contract) -> set[str]:
    """The gradients that fail on the case of cancelling pairs, under a contract."""
    result = verify(
        kernel(variant),
        contract=claim,
        dtypes=["fp32"],
        gradients=True,
        case_id=TELESCOPING,
    )
    assert all(finding.check == "gradient" for finding in result.record.findings)
    return {str(finding.tensor) for finding in result.record.findings}


def test_gradients_of_the_accurate_variant_keep_their_contract() -> None:
    """Where a fully compensated adjoint would keep what plain steps round away."""
    claim = contract("accurate", "sequential")
    assert red_tensors("accurate", claim) == set()


def test_the_accurate_variant_has_no_compensated_adjoint() -> None:
    """Claimed of gradients too, full compensation is found false on the same case."""
    claim = contract("accurate", "sequential")
    compensated = replace(claim, gradient_comp="same", gradient_exp=None)
    assert {"B", "C", "initial_state"} <= red_tensors("accurate", compensated)


@pytest.mark.parametrize("variant", ["reproducible", "accurate"])
def test_the_model_keeps_the_contract(variant: str) -> None:
    """Outputs and gradients in fp32, quick profile."""
    result = verify(kernel(variant), dtypes=["fp32"], gradients=True)
    assert result, result.explain()


def test_accurate_kernels_claim_plain_gradients() -> None:
    """As registered: comp of the forward pass alone, whatever the order's name."""
    found = [k.contract for k in kernels() if k.name.endswith(".accurate")]
    assert len(found) == 2
    for claim in found:
        assert claim is not None
        assert (claim.comp, claim.gradient_comp) == ("full", "none")
