"""Chunked rank-one kernels on an empty batch and on no token at all have a budget."""

import numpy as np
import pytest

from scancheck.bounds.budget import budget_for
from scancheck.case import make_case
from scancheck.contract import parse_contract
from scancheck.ops import op_named
from scancheck.recipes.build import build
from scancheck.recipes.inputs import cotangents

SIZES = {
    "delta_rule": {"H": 1, "HV": 2, "K": 3, "V": 2},
    "gated_delta_rule": {"H": 1, "HV": 2, "K": 3, "V": 2},
    "kda": {"H": 1, "HV": 2, "K": 3, "V": 2},
    "rwkv7": {"H": 2, "K": 3, "V": 2},
}
LOGS = {"delta_rule": ("none",), "gated_delta_rule": ("none", "diff", "segsum")}
OPERANDS = ("", ",operands=storage", ",operands=storage,accumulate=truncate")


@pytest.mark.parametrize("inverse", ["substitution", "block", "neumann"])
@pytest.mark.parametrize("operands", OPERANDS)
@pytest.mark.parametrize("op", SIZES)
def test_nothing_is_allowed_of_nothing(op: str, operands: str, inverse: str) -> None:
    """Every allowance has its tensor's shape, whatever the chunks are made of."""
    for empty in ({"B": 0, "T": 40}, {"B": 2, "T": 0}):
        case = make_case(
            op,
            empty | SIZES[op],
            dtype="bf16",
            recipe="gaussian_slow",
            seed=1,
            options={"initial_state": True},
        )
        inputs, bars = build(case), cotangents(case, "dense", 1)
        for log in LOGS.get(op, ("none", "diff", "segsum", "factored")):
            text = f"structure=chunk(32),log={log},inverse={inverse}{operands}"
            found = budget_for(
                op_named(op), inputs.tensors, inputs.switches, parse_contract(text),
                "bf16", bars,
            )  # fmt: skip
            for name, values in inputs.tensors.items():
                assert found.gradients[name].error.shape == values.shape
            for allowance in found.outputs.values():
                assert not np.isnan(allowance.error).any()
