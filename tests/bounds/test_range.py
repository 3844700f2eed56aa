"""Overflow: whatever leaves a format's range in some order has been predicted."""

import numpy as np
import pytest
from machines.emulator import hillis_steele
from machines.trial import (
    PROGRAMS,
    Data,
    allowances,
    bounded,
    computed,
    machine,
    with_cotangents,
)

from scancheck.contract import Contract, Structure
from scancheck.formats import FP16, FP32, Format, round_array


def rise_and_fall(fmt: Format, seed: int, steps: int, lanes: int) -> Data:
    """Decays of random powers of two whose products wander through the range."""
    rng = np.random.default_rng(seed)
    top = fmt.emax / 4
    a = 2.0 ** rng.uniform(-top, top, (steps, lanes))
    b = rng.normal(size=(steps, lanes)) * 2.0 ** rng.uniform(-top, top, (steps, lanes))
    b *= rng.random((steps, lanes)) < 0.5
    return with_cotangents(
        fmt, round_array(fmt, a), round_array(fmt, b), np.ones(lanes), seed
    )


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("fmt", [FP16, FP32], ids=lambda fmt: fmt.name)
def test_every_overflow_is_predicted(program: str, fmt: Format) -> None:
    """No infinity and no NaN outside the mask, in any output or gradient."""
    scan, structure = PROGRAMS[program]
    order = "sequential" if program == "sequential" else "products"
    contract = Contract(compute=fmt.name, structure=structure, range=order, ftz="no")
    seen = 0
    for seed in range(4):
        data = rise_and_fall(fmt, seed, 17, 40)
        allowed = allowances(bounded(data, contract, fmt.name))
        for name, got in computed(scan, machine(fmt, "nearest"), data).items():
            mask = allowed[name].overflows[0]
            lost = ~np.isfinite(np.asarray(got, dtype=float))
            assert not np.any(lost & ~mask), name
            seen += int(lost.sum())
    assert seen > 0


def test_a_tree_overflows_where_the_sequential_order_does_not() -> None:
    """The two declarations differ: products of decays count for trees alone."""
    a = np.array([2.0**-100, 2.0**-100, 2.0**100, 2.0**100])[:, None]
    data = with_cotangents(FP32, a, np.zeros((4, 1)), np.ones(1))
    tree = bounded(data, Contract(structure=Structure(kind="tree")), "fp32")
    order = Contract(structure=Structure(kind="sequential"), range="sequential")
    in_order = bounded(data, order, "fp32")
    assert tree.outputs["h"].overflows[0, 3]
    assert not in_order.outputs["h"].overflows.any()
    got = computed(hillis_steele, machine(FP32, "flush"), data)["h"]
    assert not np.isfinite(got[3, 0])


def test_ordinary_data_is_in_range() -> None:
    """The prediction does not cry wolf where nothing comes near the limit."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0.9, 1.0, (200, 8)), rng.normal(size=(200, 8))
    data = with_cotangents(FP32, round_array(FP32, a), round_array(FP32, b), b[0] * 0)
    for allowed in allowances(bounded(data, Contract(), "fp32")).values():
        assert not allowed.overflows.any()
        assert np.isfinite(allowed.error).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("tensor", ["a", "b", "s"])
@pytest.mark.parametrize("kind", ["unknown", "sequential", "tree"])
def test_infinite_and_missing_inputs_are_predicted(
    kind: str, tensor: str, value: float
) -> None:
    """From such an input on every output may be anything; before it none."""
    a, b, s = np.full((6, 1), 0.5), np.ones((6, 1)), np.ones(1)
    if tensor == "s":
        s[0] = value
    else:
        {"a": a, "b": b}[tensor][3] = value
    data = with_cotangents(FP32, a, b, s)
    budget = bounded(data, Contract(structure=Structure(kind=kind)), "fp32")
    first = 0 if tensor == "s" else 3
    mask = budget.outputs["h"].overflows[0, :, 0]
    assert not mask[:first].any()
    assert mask[first:].all()
