"""Rows of lanes give the numbers of the loop over entries, bit for bit."""

from typing import Any

import numpy as np
import pytest

from scancheck.bounds.error_number import ErrorNumber
from scancheck.bounds.error_rows import LANES
from scancheck.bounds.error_system import ErrorSystem
from scancheck.bounds.outer_product import FactoredNumber, OuterProduct
from scancheck.bounds.rules import Rules, rules_for
from scancheck.contract import Contract, Structure
from scancheck.ops.normal_form import Lowered

IN_ORDER = Structure(kind="sequential")
CONTRACTS = {
    "any order": Contract(),
    "any order, state in fp16": Contract(state="fp16"),
    "casts": Contract(casts=(("drive", "fp16"), ("decay", "bf16"))),
    "chunks": Contract(structure=Structure(kind="chunk", chunk=4)),
    "chunks, state in bf16": Contract(
        structure=Structure(kind="chunk", chunk=4, inner="tree", carry="tree"),
        state="bf16",
        state_every=4,
    ),
    "in order": Contract(structure=IN_ORDER),
    "in order, fused": Contract(structure=IN_ORDER, fma="yes", ftz="no"),
    "in order, state in fp16": Contract(
        structure=IN_ORDER, state="fp16", state_every=3
    ),
    "in order, cast": Contract(structure=IN_ORDER, casts=(("drive", "fp16"),)),
}
SIZES = ((2, 9, 3, 5), (1, 7, 1, LANES + 3), (2, 12, 5, 2 * LANES))


class EntryByEntry(ErrorSystem):
    """The loop that rows are compared with."""

    in_rows = False


def number(
    rules: Rules, rng: np.random.Generator, shape: tuple[int, ...], size: float
) -> ErrorNumber:
    """Numbers of about a size, some of them far outside of every format's range."""
    value = rng.normal(size=shape) * size
    if rng.uniform() < 0.5:
        for other in (np.inf, np.nan, 1e60, 1e-310, 0.0):
            value[rng.uniform(size=shape) < 0.01] = other
    magnitude = np.abs(value)
    if rules.trees:
        magnitude = magnitude * (1.0 + rng.uniform(size=shape))
    error = magnitude * 1e-6 * rng.uniform(size=shape)
    peak = (magnitude + error) * (1.0 + rng.uniform(size=shape))
    return ErrorNumber(rules, value, magnitude, error, peak)


def drawn(rules: Rules, seed: int) -> tuple[Lowered, ErrorNumber]:
    """A tile of one of the sizes and a state."""
    rng = np.random.default_rng(seed)
    groups, steps, keys, lanes = SIZES[seed % len(SIZES)]

    def one_of(*shapes: tuple[int, ...]) -> Any:
        return number(rules, rng, shapes[rng.integers(len(shapes))], sizes)

    sizes = 1.0
    w = one_of(*((groups, steps, k, n) for k in (1, keys) for n in (1, lanes)))
    if seed % 4 == 3:
        by_key, by_lane = (
            FactoredNumber(rules, *one_of((groups, steps, k, n)).components)
            for k, n in ((keys, 1), (1, lanes))
        )
        w = by_key * by_lane
    sizes = float(rng.choice([1.0, 1e-12, 1e30]))
    v = one_of((groups, steps, lanes))
    k, r = (one_of((groups, t, keys, 1), (groups, t, keys, lanes)) for t in (steps, 1))
    if keys == 1 and seed % 2:
        k = r = None
    return Lowered(w=w, v=v, k=k, r=r), number(rules, rng, (groups, keys, lanes), 1.0)


def run(system: ErrorSystem, seed: int, keep: bool) -> list[Any]:
    """Everything that two tiles of the same inputs give; no number reads infinite."""
    lowered, state = drawn(system.rules, seed)
    steps = lowered.v.shape[1]
    with np.errstate(all="ignore"):
        first, s, states = system.forward(
            lowered, system.begin(state), 0, 2 * steps, keep
        )
        second, s, _ = system.forward(lowered, s, steps, 2 * steps, False)
        last = system.end(s, 2 * steps)
    parts = [*first.components, *second.components, *last.components]
    if keep:
        parts.append(states)
    return [np.where(np.isnan(part), np.inf, part) for part in parts]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", CONTRACTS)
def test_rows_change_no_bit(name: str, keep: bool) -> None:
    """Outputs, states and peaks of two tiles, over numbers of any size."""
    rules = rules_for(CONTRACTS[name], "fp32")
    for seed in range(24):
        got = run(ErrorSystem(rules), seed, keep)
        want = run(EntryByEntry(rules), seed, keep)
        for place, (one, other) in enumerate(zip(got, want, strict=True)):
            np.testing.assert_array_equal(one, other, f"{name}, {seed}, {place}")


def test_outer_products_are_not_formed_in_rows() -> None:
    """Decays of keys and of values stay two factors, of as many entries as inputs."""
    rules = rules_for(Contract(), "fp32")
    lowered, state = drawn(rules, 3)
    assert isinstance(lowered.w, OuterProduct)
    for system, formed in ((ErrorSystem(rules), False), (EntryByEntry(rules), True)):
        with np.errstate(all="ignore"):
            system.forward(lowered, system.begin(state), 0, 2 * SIZES[0][1], False)
        assert lowered.w.is_formed is formed


def test_rows_are_used_where_no_rest_and_no_order_is_emulated() -> None:
    """Compensated kernels and named orders have the loop over entries."""
    rests = Contract(structure=IN_ORDER, comp="full")
    named = Contract(
        structure=Structure(kind="chunk", chunk=4, order="stepwise"),
    )
    assert ErrorSystem(rules_for(Contract(), "fp32")).in_rows
    assert not ErrorSystem(rules_for(rests, "fp32")).in_rows
    assert not ErrorSystem(rules_for(named, "fp32")).in_rows
