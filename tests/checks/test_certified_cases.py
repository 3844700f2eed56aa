"""Cases of fp64 kernels that were once judged against no certified reference."""

from typing import Any

import pytest

from scancheck.bounds.budget import budget_for
from scancheck.case import make_case
from scancheck.ops import op_named
from scancheck.oracles.ladder import certify
from scancheck.recipes.build import build
from scancheck.recipes.inputs import cotangents
from scancheck.registry import resolve_target

CHUNKED = "model.linear_scan.chunk64.full"
COMPENSATED = "model.linear_scan.sequential.full"
ONE_PASS = "model.selective_scan.single_pass64.plain"

GATED = {"form": "g", "initial_state": True}
SELECTIVE = {
    "D": True,
    "delta_bias": True,
    "delta_softplus": False,
    "initial_state": False,
    "keys": "time",
    "z": False,
}

# Products, decays, gates and cotangents near 2**-1074; the last one needs more digits
# than double-double has, in a few channels of a case too long for all of them.
CASES: list[tuple[str, str, int, dict[str, int], dict[str, Any], str]] = [
    (CHUNKED, "strong_gates", 0, {"B": 3, "D": 17, "T": 255}, GATED, "final_state"),
    (CHUNKED, "values_tell_their_place", 9412, {"B": 3, "D": 51, "T": 72}, GATED, ""),
    (
        CHUNKED,
        "exact_reset",
        1171,
        {"B": 3, "D": 27, "T": 127},
        GATED,
        "cancelling_pairs",
    ),
    (
        CHUNKED,
        "mixed_time_scales",
        250,
        {"B": 2, "D": 17, "T": 463},
        {"form": "a", "initial_state": False},
        "final_state",
    ),
    (
        ONE_PASS,
        "decay_near_zero",
        1058153,
        {"B": 3, "D": 4, "G": 1, "L": 129, "N": 9},
        SELECTIVE,
        "one_token",
    ),
    (
        COMPENSATED,
        "prescribed_condition",
        65804,
        {"B": 3, "D": 11, "T": 380},
        {"chunk": 128, "form": "a", "initial_state": False},
        "cancelling_pairs",
    ),
]


@pytest.mark.parametrize(
    ("target", "recipe", "seed", "sizes", "options", "kind"),
    CASES,
    ids=[recipe for _, recipe, *_ in CASES],
)
def test_every_element_is_certified(
    target: str,
    recipe: str,
    seed: int,
    sizes: dict[str, int],
    options: dict[str, Any],
    kind: str,
) -> None:
    """No output and no gradient of a correct kernel is left without a reference."""
    (kernel,) = resolve_target(target, None)
    op = op_named(kernel.op)
    case = make_case(
        op.name, sizes, dtype="fp64", recipe=recipe, seed=seed, options=options
    )
    inputs = build(case)
    bars = cotangents(case, kind or "dense", case.seed)
    assert kernel.contract is not None
    arguments = (op, inputs.tensors, inputs.switches)
    budget = budget_for(*arguments, kernel.contract, case.dtype, bars)
    allowance = {n: a.error for n, a in (budget.outputs | budget.gradients).items()}
    truth = certify(*arguments, bars, allowance)
    assert set(truth.references) == set(allowance)
    for reference in truth.references.values():
        assert reference.certified.all()
