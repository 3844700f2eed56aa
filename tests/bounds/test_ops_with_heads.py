"""Budgets of ops with heads hold for step-by-step kernels, and are no excuse."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from step_formulas import STEPS

from scancheck.bounds.budget import budget_for
from scancheck.contract import Contract, ErrorModel, Structure
from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS, round_array
from scancheck.ops import OPS
from scancheck.oracles.ball import certified_radius
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System

FloatArray = NDArray[np.float64]
SIZES = {"B": 2, "T": 37, "H": 2, "HV": 4, "K": 16, "V": 5, "P": 5, "N": 16, "G": 2}
# torch's exponential of a float is within two ulps, and its sums are in any order.
CONTRACT = Contract(
    structure=Structure(kind="sequential"), exp=ErrorModel(e0=4.0, e1=0.0)
)
NAMES = sorted(STEPS)
GATES = {"g", "gk", "gv", "w"}


def drawn(
    name: str, seed: int, kind: str, dtype: str = "fp32"
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Tensors in the dtype and cotangents; keys of unit norm, or alike, or growing."""
    op, rng = OPS[name], np.random.default_rng(seed)
    sizes = SIZES | ({} if "HV" in op.size_names else {"H": 4})
    tensors = {}
    for spec in op.inputs:
        x = rng.normal(size=[sizes[axis] for axis in spec.axes])
        if spec.name in GATES:
            x = -np.abs(x) * 10.0 ** rng.integers(-4, 2)
        elif spec.name == "A":
            x = -np.abs(x)
        elif spec.name == "dt":
            x = np.abs(x)
        elif spec.name == "beta":
            x = rng.uniform(0, 2, x.shape)
        elif spec.name == "k" and "beta" in [s.name for s in op.inputs]:
            if kind == "alike":
                x = x[:, :1] + 0.01 * x
            x = x / np.linalg.norm(x, axis=-1, keepdims=True)
            x = x * (1.05 if kind == "growing" else 1.0)
        tensors[spec.name] = x
    if name == "rwkv7":
        key = tensors["a"] / np.linalg.norm(tensors["a"], axis=-1, keepdims=True)
        tensors["a"], tensors["b"] = -key, key * rng.uniform(0, 1, key.shape)
    for spec in op.inputs:
        fmt = FORMATS[dtype if spec.kind == "storage" else "fp32"]
        tensors[spec.name] = round_array(fmt, tensors[spec.name])
    bars = {
        spec.name: round_array(
            FORMATS[dtype if spec.kind == "storage" else "fp32"],
            rng.normal(size=[sizes[axis] for axis in spec.axes]),
        )
        for spec in op.outputs
    }
    return tensors, bars


def in_fp32(
    name: str, tensors: dict[str, FloatArray], bars: dict[str, FloatArray]
) -> dict[str, FloatArray]:
    """Outputs and gradients of the step formulas in torch's float32."""
    leaves = {n: torch.tensor(x, dtype=torch.float32) for n, x in tensors.items()}
    for leaf in leaves.values():
        leaf.requires_grad_()
    outputs = STEPS[name](**leaves)
    names = [spec.name for spec in OPS[name].outputs]
    given = [torch.tensor(bars[n], dtype=torch.float32) for n in names]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), given)
    found: dict[str, Any] = dict(zip(names, outputs, strict=True))
    found |= dict(zip(leaves, gradients, strict=True))
    return {n: x.detach().double().numpy() for n, x in found.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["usual", "alike", "growing"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_step_forms_stay_within_their_budget(name: str, kind: str, dtype: str) -> None:
    """Every output and gradient, computed in fp32 from stored values and stored."""
    worst = 0.0
    for seed in range(3):
        tensors, bars = drawn(name, seed, kind, dtype)
        budget = budget_for(OPS[name], tensors, {}, CONTRACT, dtype, bars)
        truth = solve(Fp64System(), OPS[name], tensors, {}, bars)
        got = in_fp32(name, tensors, bars)
        allowed = budget.outputs | budget.gradients
        for tensor, ball in {**truth.outputs, **truth.gradients}.items():
            stored = got[tensor]
            if allowed[tensor].storage_u > 2.0**-24:
                stored = round_array(FORMATS[dtype], stored)
            error = np.abs(stored - ball.value)
            radius, bound = certified_radius(ball), allowed[tensor].error
            assert (radius <= 2.0**-10 * bound).all(), tensor
            assert (error <= bound + radius).all(), (tensor, (error / bound).max())
            worst = max(worst, float((error / bound).max()))
    # A bound that no kernel comes near would say nothing.
    assert worst > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_of_a_few_roundings_is_seen(name: str) -> None:
    """The final state kept in bf16 where fp32 was claimed."""
    tensors, bars = drawn(name, 7, "usual")
    final = OPS[name].outputs[1].name
    budget = budget_for(OPS[name], tensors, {}, CONTRACT, "fp32")
    truth = solve(Fp64System(), OPS[name], tensors, {})
    short = round_array(FORMATS["bf16"], in_fp32(name, tensors, bars)[final])
    error = np.abs(short - truth.outputs[final].value)
    assert (error > budget.outputs[final].error).any()


@pytest.mark.parametrize(
    ("contract", "words"),
    [
        (Contract(), "contract structure: expected sequential or chunk"),
        (
            Contract(structure=Structure(kind="sequential"), comp="kahan"),
            "contract comp: expected none",
        ),
        (
            Contract(structure=Structure(kind="sequential"), log="segsum"),
            "contract log: expected none for delta_rule",
        ),
    ],
)
def test_contracts_without_a_bound_are_refused(contract: Contract, words: str) -> None:
    """The message names what was expected."""
    tensors, _ = drawn("delta_rule", 0, "usual")
    with pytest.raises(CaseInvalid, match=words):
        budget_for(OPS["delta_rule"], tensors, {}, contract, "fp32")
