"""Compensated programs: full compensation in any structure, and sums alone."""

from dataclasses import replace

import numpy as np
import pytest
from machines.compensated import compensated, kahan
from machines.families import FAMILIES, drawn
from machines.trial import bounded, exact, machine, ratios, with_cotangents

from scancheck.contract import Contract, Structure
from scancheck.formats import BF16, FORMATS, FP32, Format, round_array

STEPS, LANES = 40, 16


def reached(
    family: str, fmt: Format, mode: str, kind: str, comp: str, structure: Structure,
    state: str = "compute", every: int = 1,
) -> float:  # fmt: skip
    """The largest ratio of one compensated program under one contract."""
    data = with_cotangents(fmt, *drawn(family, fmt, 2, STEPS, LANES))
    m = machine(fmt, mode)
    keep = None if state == "compute" else (FORMATS[state], every)
    with np.errstate(all="ignore"):
        if kind == "kahan":
            got = kahan(m, data.a, data.b, data.s)
        else:
            tree = structure.kind == "tree"
            got = compensated(m, kind, data.a, data.b, data.s, tree=tree, keep=keep)
    contract = Contract(
        compute=fmt.name, structure=structure, comp=comp, state=state,
        state_every=every, ftz="yes" if mode == "flush" else "no",
    )  # fmt: skip
    budget = bounded(data, contract, fmt.name)
    return float(np.max(ratios(got, exact(data)["h"], budget.outputs["h"])))


SEQUENTIAL, TREE = Structure(kind="sequential"), Structure(kind="tree")


@pytest.mark.parametrize(
    ("kind", "comp", "structure"),
    [
        ("full", "full", SEQUENTIAL),
        ("full", "full", TREE),
        ("neumaier", "kahan", SEQUENTIAL),
        ("neumaier", "kahan", TREE),
        ("kahan", "kahan", SEQUENTIAL),
        ("kahan", "kahan", Structure()),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_compensated_program_exceeds_its_budget(
    family: str, kind: str, comp: str, structure: Structure
) -> None:
    """Both compensations, in order and in a tree, gradual and flushed: err <= E."""
    for fmt in (FP32, BF16):
        modes = ("nearest", "flush")
        if fmt == FP32 and family not in ("subnormal", "tiny_decay"):
            modes = ("nearest",)
        for mode in modes:
            assert reached(family, fmt, mode, kind, comp, structure) <= 1.0, mode


@pytest.mark.parametrize("comp", ["full", "kahan"])
@pytest.mark.parametrize("family", ["near_one", "telescoping", "huge_range"])
def test_a_kept_state_costs_its_own_roundings(family: str, comp: str) -> None:
    """A state in bf16 every seven steps fits its budget, and not the one without it."""
    kind = "full" if comp == "full" else "neumaier"
    arguments = (family, FP32, "nearest", kind, comp, SEQUENTIAL)
    assert reached(*arguments, state="bf16", every=7) <= 1.0
    assert _without_state(family, kind, comp) > 1.0


def _without_state(family: str, kind: str, comp: str) -> float:
    data = with_cotangents(FP32, *drawn(family, FP32, 2, STEPS, LANES))
    got = compensated(
        machine(FP32, "nearest"), kind, data.a, data.b, data.s, keep=(BF16, 7)
    )
    contract = Contract(structure=SEQUENTIAL, comp=comp, ftz="no")
    budget = bounded(data, contract, "fp32")
    return float(np.max(ratios(got, exact(data)["h"], budget.outputs["h"])))


@pytest.mark.parametrize("structure", [SEQUENTIAL, TREE])
def test_full_compensation_is_told_from_sums_alone(structure: Structure) -> None:
    """The full budget is nearly one rounding; compensated sums alone exceed it."""
    assert reached("near_one", FP32, "nearest", "full", "full", structure) > 0.9
    exceeded = reached("near_one", FP32, "nearest", "neumaier", "full", structure)
    assert exceeded > 3.0


def test_the_second_order_is_needed() -> None:
    """In bf16 the roundings of the rests alone take more than one final rounding."""
    a = np.full((200, 8), -1.0 + BF16.unit_roundoff)
    b = round_array(BF16, 2.0 - 0.25 * np.random.default_rng(0).random((200, 8)))
    data = with_cotangents(BF16, a, b, np.ones(8))
    got = compensated(machine(BF16, "nearest"), "full", data.a, data.b, data.s)
    want = exact(data)["h"]
    assert np.any(np.abs(got - want) > 1.5 * BF16.unit_roundoff * np.abs(want))
    contract = Contract(compute="bf16", structure=SEQUENTIAL, comp="full", ftz="no")
    budget = bounded(data, contract, "bf16")
    assert np.max(ratios(got, want, budget.outputs["h"])) <= 1.0


def test_a_plain_backward_has_plain_gradients_and_compensated_outputs() -> None:
    """gradient_comp and gradient_exp widen gradients, to those of comp=none, alone."""
    data = with_cotangents(FP32, *drawn("telescoping", FP32, 2, STEPS, LANES))
    plain, kept = Contract(structure=SEQUENTIAL), Contract(
        structure=SEQUENTIAL, comp="full", gradient_comp="none"
    )  # fmt: skip
    full = bounded(data, replace(kept, gradient_comp="same"), "fp32")
    loose, found = bounded(data, plain, "fp32"), bounded(data, kept, "fp32")
    for name, allowance in found.outputs.items():
        assert np.array_equal(allowance.error, full.outputs[name].error), name
    for name, allowance in found.gradients.items():
        assert np.array_equal(allowance.error, loose.gradients[name].error), name
        assert (allowance.error >= full.gradients[name].error).all(), name
        assert (allowance.error > full.gradients[name].error).any(), name
