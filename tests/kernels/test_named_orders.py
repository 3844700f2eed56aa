"""The plain models keep to the bound of the order that their contract names."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scancheck.bounds.budget import budget_for
from scancheck.bridge import from_torch, to_torch
from scancheck.case import Case
from scancheck.contract import Contract, Structure
from scancheck.kernel import Kernel
from scancheck.kernels.faulty.catalog import controls
from scancheck.kernels.models.catalog import model
from scancheck.metrics import measure
from scancheck.ops import op_named
from scancheck.ops.normal_form import spec_of
from scancheck.oracles.ladder import certify
from scancheck.recipes.build import build
from scancheck.recipes.draw import cases
from scancheck.recipes.inputs import tensor_format

# Everything in fp32, everything in the storage format, and a carried state in bf16.
ARITHMETIC: tuple[dict[str, Any], ...] = (
    {},
    {"compute": "storage"},
    {"state": "bf16"},
)
OPS = ("linear_scan", "selective_scan")


def largest_ratio(kernel: Kernel, contract: Contract, case: Case) -> float:
    """max err / E over the outputs; infinite where a number was due and none came."""
    op, inputs = op_named(case.op), build(case)
    budget = budget_for(op, inputs.tensors, inputs.switches, contract, case.dtype)
    allowance = {name: a.error for name, a in budget.outputs.items()}
    truth = certify(op, inputs.tensors, inputs.switches, None, allowance)
    tensors = {
        name: to_torch(x, tensor_format(case, spec_of(op, name, x.ndim)).name)
        for name, x in inputs.tensors.items()
    }
    got = kernel.call(**tensors, **inputs.switches)
    worst = 0.0
    for spec, tensor in zip(op.outputs, got, strict=True):
        found = measure(
            spec.name,
            from_torch(tensor),
            truth.outputs[spec.name],
            budget.outputs[spec.name],
        )
        if found.nonfinite.any() or found.wrong_kind.any():
            return np.inf
        worst = max(worst, float(np.max(found.ratio, initial=0.0)))
    return worst


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("algorithm", ["hillis_steele", "chunk", "chunk_tree"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_no_model_exceeds_the_bound_of_its_order(
    algorithm: str, op: str, data: st.DataObject
) -> None:
    """Any recipe, length, chunk size, format and state: err <= E."""
    chunk = data.draw(st.sampled_from([1, 2, 8, 64]))
    options = data.draw(st.sampled_from(ARITHMETIC))
    if algorithm == "hillis_steele" and "state" in options:
        options = {}
    kernel = model(op, algorithm, "plain", chunk=chunk, **options)
    assert kernel.contract is not None
    assert kernel.contract.structure.order != "any"
    drawn = cases(op, dtypes=("fp32", "bf16", "fp16"), chunk=chunk)
    case = data.draw(drawn)
    assert largest_ratio(kernel, kernel.contract, case) <= 1.0


@pytest.mark.parametrize("control", controls(), ids=lambda kernel: kernel.op)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_chunk_that_is_joined_to_its_carry_keeps_to_it(
    control: Kernel, data: st.DataObject
) -> None:
    """The control scans chunks from zero, in torch's own arithmetic: err <= E."""
    structure = Structure(kind="chunk", chunk=control.chunk, order="stepwise")
    accepts = frozenset(
        {"a", "initial_state", "D", "z", "delta_bias", "delta_softplus"}
    )
    drawn = cases(control.op, dtypes=("fp32", "bf16"), accepts=accepts)
    case = data.draw(drawn)
    assert largest_ratio(control, Contract(structure=structure), case) <= 1.0
