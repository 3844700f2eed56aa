"""Gradients of a key head that value heads share, each in the dtype before the sum."""

import numpy as np
import pytest

from scancheck.bounds.budget import budget_for
from scancheck.contract import Contract, Structure
from scancheck.formats import FORMATS, round_array
from scancheck.ops import op_named
from scancheck.oracles.fp64 import solve_fp64

SIZES = {"B": 1, "T": 40, "H": 2, "HV": 8, "K": 4, "V": 3}
SEQUENTIAL = Structure(kind="sequential")


def worst(op: str, parts: str, contract: Contract) -> float:
    """The largest error over its budget of dq and dk whose parts are in this format."""
    known, rng = op_named(op), np.random.default_rng(4)
    fmt = FORMATS["fp16"]
    specs = {spec.name: spec.axes for spec in (*known.inputs, *known.outputs)}
    tensors = {
        spec.name: round_array(fmt, rng.normal(size=[SIZES[a] for a in spec.axes]))
        for spec in known.inputs
        if spec.required
    }
    for name in tensors.keys() & {"g", "beta"}:
        tensors[name] = -np.abs(tensors[name]) if name == "g" else tensors[name] / 8
    bar = round_array(fmt, rng.normal(size=[SIZES[a] for a in specs["o"]]))
    want = solve_fp64(known, tensors, {}, {"o": bar}).gradients
    # A head of its own for each value head, as where q and k are repeated.
    shared = SIZES["HV"] // SIZES["H"]
    apart = {n: np.repeat(tensors[n], shared, 2) for n in ("q", "k")}
    each = solve_fp64(known, tensors | apart, {}, {"o": bar}).gradients
    budget = budget_for(known, tensors, {}, contract, "fp16", {"o": bar})
    found = []
    for name in ("q", "k"):
        part = round_array(FORMATS[parts], each[name].value)
        part = part.reshape(*part.shape[:2], SIZES["H"], shared, -1)
        got = round_array(fmt, part.sum(3))
        off = np.abs(got - want[name].value)
        found.append(float((off / budget.gradients[name].error).max()))
    return max(found)


@pytest.mark.parametrize("op", ["linear_attention", "simple_gla", "delta_rule"])
def test_parts_are_rounded_where_that_is_declared(op: str) -> None:
    """To the dtype; to a shorter format they are not."""
    claim = Contract(structure=SEQUENTIAL, gradient_parts="storage")
    assert 0.3 < worst(op, "fp16", claim) <= 1.0
    assert worst(op, "bf16", claim) > 2.0
    assert worst(op, "fp64", Contract(structure=SEQUENTIAL)) <= 1.0
    assert worst(op, "fp16", Contract(structure=SEQUENTIAL)) > 1.0
