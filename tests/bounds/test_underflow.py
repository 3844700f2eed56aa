"""Results below the normal range: gradual underflow and flushing to zero."""

import numpy as np
import pytest
from machines.emulator import Entry, Machine, hillis_steele
from machines.families import drawn
from machines.trial import (
    PROGRAMS,
    Data,
    bounded,
    computed,
    exact,
    machine,
    ratios,
    with_cotangents,
    worst,
)

from scancheck.contract import Contract, Structure
from scancheck.formats import FP32, round_array

SEQUENTIAL = Structure(kind="sequential")


def fused(a: list[Entry], b: list[Entry], s: Entry) -> list[Entry]:
    """One fma a step, by values alone."""
    m, out = s.tape.machine, []
    for x, y in zip(a, b, strict=True):
        s = s.tape.entry(m.fma(x.value, s.value, y.value))
        out.append(s)
    return out


@pytest.mark.parametrize("family", ["subnormal", "near_one", "negative", "huge_range"])
@pytest.mark.parametrize("mode", ["nearest", "away", "flush"])
def test_one_rounding_a_step_fits_its_budget(family: str, mode: str) -> None:
    """fma=yes bounds a fused step; below the normal range it still rounds."""
    data = with_cotangents(FP32, *drawn(family, FP32, 4, 40, 8))
    ftz = "yes" if mode == "flush" else "no"
    budget = bounded(data, Contract(structure=SEQUENTIAL, fma="yes", ftz=ftz), "fp32")
    got = computed(fused, machine(FP32, mode), data)["h"]
    assert np.max(ratios(got, exact(data)["h"], budget.outputs["h"])) <= 1.0


def test_two_roundings_a_step_do_not_fit_one() -> None:
    """A kernel that rounds its products exceeds the fma budget."""
    data = with_cotangents(FP32, *drawn("near_one", FP32, 4, 40, 8))
    contract = Contract(structure=SEQUENTIAL, fma="yes", ftz="no")
    scan, _ = PROGRAMS["sequential"]
    got = computed(scan, machine(FP32, "away"), data)["h"]
    budget = bounded(data, contract, "fp32")
    assert np.max(ratios(got, exact(data)["h"], budget.outputs["h"])) > 1.2


def small_products(seed: int) -> Data:
    """States near 1e-25 and cotangents near 1e-20: products of both are subnormal."""
    rng = np.random.default_rng(seed)
    shape = (33, 12)
    return Data(
        a=round_array(FP32, rng.uniform(0.7, 1, shape)),
        b=round_array(FP32, 1e-25 * rng.uniform(0.5, 1, shape)),
        s=round_array(FP32, 1e-25 * rng.uniform(0.5, 1, shape[1])),
        ybar=round_array(FP32, 1e-20 * rng.uniform(0.5, 1, shape)),
        last_bar=round_array(FP32, 1e-20 * rng.uniform(0.5, 1, shape[1])),
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_underflow_in_reverse_mode_is_bounded(program: str) -> None:
    """Every product of a tree's cotangents may underflow on its own."""
    scan, structure = PROGRAMS[program]
    for seed in range(3):
        data = small_products(seed)
        want = exact(data)
        for ftz, mode in (("no", "nearest"), ("yes", "flush")):
            budget = bounded(data, Contract(structure=structure, ftz=ftz), "fp32")
            assert worst(computed(scan, machine(FP32, mode), data), want, budget) <= 1


def test_underflow_in_reverse_mode_is_more_than_one_rounding() -> None:
    """A tree's gate gradients miss by more than one subnormal rounding."""
    data = small_products(0)
    got = computed(hillis_steele, Machine(fmt=FP32), data)["a"]
    assert np.max(np.abs(got - exact(data)["a"])) > 2.0 * FP32.eta


@pytest.mark.parametrize(
    ("family", "mode"), [("subnormal", "nearest"), ("tiny_decay", "flush")]
)
def test_without_its_terms_underflow_exceeds_the_budget(family: str, mode: str) -> None:
    """The absolute terms are needed: without them subnormal data break the bound."""
    data = with_cotangents(FP32, *drawn(family, FP32, 1, 23, 6))
    scan, structure = PROGRAMS["sequential"]
    contract = Contract(structure=structure, ftz="yes" if mode == "flush" else "no")
    budget = bounded(data, contract, "fp32", underflow=False)
    got = computed(scan, machine(FP32, mode), data)["h"]
    assert np.max(ratios(got, exact(data)["h"], budget.outputs["h"])) > 1.0
