"""Outputs and gradients of linear_scan: no program inside its contract exceeds E."""

import numpy as np
import pytest
from machines.emulator import Machine, sequential
from machines.families import FAMILIES, drawn
from machines.trial import (
    PROGRAMS,
    bounded,
    computed,
    exact,
    machine,
    ratios,
    with_cotangents,
    worst,
)

from scancheck.contract import Contract, Structure
from scancheck.formats import FORMATS, FP32
from scancheck.ops.linear_scan import LINEAR_SCAN
from scancheck.oracles.fp64 import solve_fp64

STEPS, LANES = 16, 6
# Values of these do not fit into fp16.
WIDE_RANGE = ("tiny_decay", "subnormal", "huge_range", "dip")


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_program_exceeds_its_budget(family: str, program: str) -> None:
    """Rounded to nearest, flushed, or moved by adversaries: err <= E everywhere."""
    scan, structure = PROGRAMS[program]
    for dtype in ("fp32", "bf16", "fp16"):
        if dtype == "fp16" and (family in WIDE_RANGE or "tree" not in program):
            continue
        fmt = FORMATS[dtype]
        data = with_cotangents(fmt, *drawn(family, fmt, 1, STEPS, LANES))
        want = exact(data)
        other = "random" if dtype == "bf16" else "away"
        for ftz, modes in (("no", ("nearest", other)), ("yes", ("flush",))):
            contract = Contract(compute=dtype, structure=structure, ftz=ftz)
            budget = bounded(data, contract, dtype)
            for mode in modes:
                got = computed(scan, machine(fmt, mode), data)
                assert worst(got, want, budget) <= 1.0, (dtype, mode)


def test_worst_case_of_a_declared_sequential_order_is_reached() -> None:
    """Always rounding away reaches 0.99 of the sequential budget: it is not vacuous."""
    data = with_cotangents(FP32, *drawn("near_one", FP32, 2, 64, 8))
    contract = Contract(structure=Structure(kind="sequential"), ftz="no")
    budget = bounded(data, contract, "fp32")
    got = computed(sequential, Machine(fmt=FP32, direction="away"), data)
    reached = ratios(got["h"], exact(data)["h"], budget.outputs["h"])[-1]
    assert 0.99 < reached.min() <= reached.max() <= 1.0


def test_worst_case_of_an_unknown_order_is_reached() -> None:
    """A term that passes every product and addition takes 0.99 of the any-order E."""
    a, b, s = drawn("near_one", FP32, 2, 64, 8)
    data = with_cotangents(FP32, a, 0 * b, s)
    got = computed(sequential, Machine(fmt=FP32, direction="away"), data)
    budget = bounded(data, Contract(ftz="no"), "fp32")
    reached = ratios(got["h"], exact(data)["h"], budget.outputs["h"])[-1]
    assert 0.99 < reached.min() <= reached.max() <= 1.0


@pytest.mark.parametrize("family", ["near_one", "uniform", "negative"])
def test_rounding_to_nearest_uses_a_fair_part_of_the_budget(family: str) -> None:
    """Ordinary rounding reaches 0.3 of the sequential budget in some element."""
    data = with_cotangents(FP32, *drawn(family, FP32, 5, 64, 64))
    contract = Contract(structure=Structure(kind="sequential"), ftz="no")
    got = computed(sequential, Machine(fmt=FP32), data)
    reached = ratios(
        got["h"], exact(data)["h"], bounded(data, contract, "fp32").outputs["h"]
    )
    assert reached[8:].max() > 0.3


@pytest.mark.parametrize("family", ["near_one", "uniform", "signed", "growth", "ones"])
@pytest.mark.parametrize("steps", [1, 7, 64, 400])
def test_first_order_is_the_formula(family: str, steps: int) -> None:
    """E = u (W + t M) (1 + O(t u)) for any order; u (2 W + M) bounds the running E."""
    data = with_cotangents(FP32, *drawn(family, FP32, 3, steps, 16))
    solution = solve_fp64(LINEAR_SCAN, data.tensors, {}, companions=True)
    m, w = solution.companions["M"], solution.companions["W"]
    t = np.arange(1, steps + 1)[:, None]
    u = FP32.unit_roundoff
    first = u * (w + t * m)
    got = bounded(data, Contract(), "fp32", underflow=False).outputs["h"].error
    assert np.all(got >= first)
    assert np.all(got <= first * (1.0 + (3 * steps + 10) * u + 1e-8))
    contract = Contract(structure=Structure(kind="sequential"))
    running = bounded(data, contract, "fp32", underflow=False).outputs["h"].error
    assert np.all(running <= u * (2 * w + m) * (1.0 + (3 * steps + 10) * u + 1e-8))


@pytest.mark.parametrize("part", ["a tenth of E", "E without W", "E without t M"])
def test_a_smaller_budget_is_exceeded(part: str) -> None:
    """The attack notices a budget that lacks one of its terms."""
    a, b, s = drawn("near_one", FP32, 2, 64, 8)
    data = with_cotangents(FP32, a, 0 * b, s)
    got = computed(sequential, Machine(fmt=FP32, direction="away"), data)
    error = np.abs(got["h"] - exact(data)["h"])[-1]
    solution = solve_fp64(LINEAR_SCAN, data.tensors, {}, companions=True)
    m, w = (solution.companions[name][0, -1] for name in ("M", "W"))
    u = FP32.unit_roundoff
    smaller = {
        "a tenth of E": 0.1 * u * (w + 64 * m),
        "E without W": u * 64 * m,
        "E without t M": u * w,
    }
    assert np.all(error > smaller[part])
