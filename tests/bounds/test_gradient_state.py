"""Gradients from states as the forward pass has stored them."""

from typing import Any

import numpy as np
import pytest

from scancheck.bounds.budget import budget_for
from scancheck.bounds.moments import moments_for
from scancheck.contract import Contract, parse_contract
from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS, round_array
from scancheck.ops import op_named

SIZES = {"B": 2, "T": 60, "D": 3, "H": 1, "HV": 1, "K": 2, "V": 3}
STORED = "structure=sequential,gradient_state=storage"


def halves(shape: tuple[int, ...], seed: int) -> Any:
    """Numbers that fp16 holds."""
    rng = np.random.default_rng(seed)
    return round_array(FORMATS["fp16"], rng.normal(size=shape))


def worst(state: str, contract: Contract) -> float:
    """The largest error over its budget of da where h is read back in a format."""
    op = op_named("linear_scan")
    shape = tuple(SIZES[axis] for axis in "BTD")
    a, b, bar = (halves(shape, seed) for seed in (1, 2, 3))
    a = round_array(FORMATS["fp16"], 0.9 + a / 32)
    h, states = np.zeros(shape[::2]), []
    for t in range(shape[1]):
        states.append(h)
        h = a[:, t] * h + b[:, t]
    given, got, want = np.zeros(shape[::2]), np.zeros(shape), np.zeros(shape)
    for t in reversed(range(shape[1])):
        given = given + bar[:, t]
        want[:, t] = given * states[t]
        got[:, t] = given * round_array(FORMATS[state], states[t])
        given = a[:, t] * given
    got = round_array(FORMATS["fp16"], got)
    tensors = {"a": a, "b": b}
    budget = budget_for(op, tensors, {}, contract, "fp16", {"h": bar})
    return float((np.abs(got - want) / budget.gradients["a"].error).max())


def test_stored_states_are_counted_where_that_is_declared() -> None:
    """In the dtype, and not in a shorter one."""
    assert 0.5 < worst("fp16", parse_contract(STORED)) <= 1.0
    assert worst("bf16", parse_contract(STORED)) > 2.0
    assert worst("fp64", parse_contract("structure=sequential")) <= 1.0
    assert worst("fp16", parse_contract("structure=sequential")) > 1.0


@pytest.mark.parametrize("op", ["linear_scan", "delta_rule"])
def test_it_is_of_gradients_alone(op: str) -> None:
    """Outputs, and what needs no state, have the budgets that they had."""
    known = op_named(op)
    specs = {spec.name: spec.axes for spec in (*known.inputs, *known.outputs)}
    shapes = {n: tuple(SIZES[axis] for axis in axes) for n, axes in specs.items()}
    tensors = {
        spec.name: halves(shapes[spec.name], 5) / 4
        for spec in known.inputs
        if spec.required or spec.name == "a"
    }
    out = known.outputs[0].name
    given = known, tensors, {}
    rest = "fp16", {out: halves(shapes[out], 6)}
    plain, stored = (
        budget_for(*given, parse_contract(text), *rest)
        for text in ("structure=sequential", STORED)
    )
    wider = {
        name
        for name, one in plain.gradients.items()
        if (stored.gradients[name].error > one.error).any()
    }
    assert wider == {"linear_scan": {"a"}, "delta_rule": {"q", "k", "beta"}}[op]
    assert (stored.outputs[out].error == plain.outputs[out].error).all()


def test_moments_count_them() -> None:
    """The predicted error of da is larger, that of db is not."""
    op = op_named("linear_scan")
    tensors = {name: halves((2, 60, 3), 7) / 4 for name in "ab"}
    bars = {"h": halves((2, 60, 3), 8)}
    plain, stored = (
        moments_for(op, tensors, {}, parse_contract(text), "fp16", bars)
        for text in ("structure=sequential", STORED)
    )
    assert plain is not None and stored is not None
    assert (stored["a"] > 1.2 * plain["a"]).mean() > 0.9
    assert (stored["b"] == plain["b"]).all()


@pytest.mark.parametrize(
    ("op", "contract"),
    [
        ("gla", "log=diff,structure=chunk(16),gradient_state=storage"),
        ("gla", "operands=storage,structure=chunk(16),gradient_state=storage"),
        ("delta_rule", "structure=chunk(16),gradient_state=storage"),
    ],
)
def test_what_has_no_bound_says_so(op: str, contract: str) -> None:
    """Chunks of matrix products hold their states as operands."""
    with pytest.raises(CaseInvalid, match="contract gradient_state: expected compute"):
        budget_for(op_named(op), {}, {}, parse_contract(contract), "fp16", None)
