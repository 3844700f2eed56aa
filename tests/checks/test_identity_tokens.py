"""The tokens that the relation of padding appends leave every state as it is."""

from typing import Any

import numpy as np
import pytest

from scancheck.case import make_case
from scancheck.checks.transformed import IDENTITY, STEPS, _identity
from scancheck.formats import FloatArray
from scancheck.ops import OPS, op_named
from scancheck.ops.normal_form import spec_of
from scancheck.oracles.ball import certified_radius, exact_ball
from scancheck.oracles.engine import solve
from scancheck.oracles.systems import GenericSystem
from scancheck.recipes import Inputs, build

SIZES = {
    "B": 2,
    "D": 3,
    "H": 2,
    "HV": 4,
    "K": 3,
    "V": 2,
    "P": 2,
    "G": 1,
    "N": 3,
    "M": 2,
}
NO_IDENTITY = {"retention", "lightning_attention"}


class Balls(GenericSystem):
    """Any op, step by step."""

    def constant(self, values: FloatArray) -> Any:
        return exact_ball(values)


def padded(op: str, inputs: Inputs, last: dict[str, float]) -> dict[str, FloatArray]:
    """The tensors with three tokens more, those named of these values."""
    known, made = op_named(op), {}
    for name, values in inputs.tensors.items():
        axes = spec_of(known, name, values.ndim).axes
        made[name] = values
        if known.time_axis in axes:
            axis = axes.index(known.time_axis)
            more = np.take(values, [0, 1, 0], axis)
            more = np.full_like(more, last[name]) if name in last else more
            made[name] = np.concatenate([values, more], axis)
    return made


@pytest.mark.parametrize("op", [op for op in OPS if op not in NO_IDENTITY])
def test_a_state_outlives_identity_tokens(op: str) -> None:
    """The final state is the same, up to what its balls leave open."""
    known = op_named(op)
    sizes = {n: SIZES.get(n, 7) for n in known.size_names}
    options = {known.state: True} | ({"form": "g"} if op == "linear_scan" else {})
    case = make_case(op, sizes, recipe="gaussian_slow", seed=3, options=options)
    inputs = build(case)
    last = _identity(op, inputs)
    assert last is not None
    final = known.outputs[1].name
    before, after = (
        solve(Balls(), known, tensors, inputs.switches).outputs[final]
        for tensors in (inputs.tensors, padded(op, inputs, last))
    )
    reach = certified_radius(before) + certified_radius(after)
    # softplus of what shuts a step is not quite 0.
    reach = reach + (1e-60 if op in STEPS else 0.0)
    assert (np.abs(before.value - after.value) <= reach).all()
    assert (np.abs(before.value) > 1e3 * reach).any()


def test_every_op_has_its_tokens_or_none() -> None:
    """Decays that are fixed cannot be shut; a bias without softplus neither."""
    assert set(IDENTITY) | set(STEPS) | NO_IDENTITY == set(OPS)
    sizes = {"B": 1, "T": 2, "H": 1, "P": 1, "G": 1, "N": 1}
    for bias in (True, False):
        options = {"dt_softplus": False, "dt_bias": bias}
        case = make_case("ssd", sizes, recipe="unit_decay", seed=0, options=options)
        assert (_identity("ssd", build(case)) is None) is bias
