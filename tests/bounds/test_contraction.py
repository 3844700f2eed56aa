"""Cotangents in one pass are those formed product by product, for both numbers."""

from typing import Any

import numpy as np
import pytest

from scancheck.bounds.error_contraction import error_rules
from scancheck.bounds.error_number import ErrorNumber
from scancheck.bounds.rules import rules_for
from scancheck.contract import Contract, Structure
from scancheck.ops.normal_form import Lowered
from scancheck.oracles.ball_contraction import BALLS
from scancheck.oracles.contraction import contracted
from scancheck.oracles.fp64 import contract
from scancheck.oracles.rank_one import cotangents_of
from scancheck.oracles.tile_ball import TileBall

SIZES = ((2, 5, 7, 9), (1, 3, 4, 64), (2, 2, 1, 33), (1, 0, 3, 3))
# The order of sums differs: by a few roundings of each term.
ULPS = 2.0**-46
RULES = {
    "any order": rules_for(Contract(), "fp32"),
    "in order": rules_for(Contract(structure=Structure(kind="sequential")), "fp32"),
}


def drawn(kind: str, rng: np.random.Generator, *shape: int) -> Any:
    """Numbers of one kind, with errors of their own."""
    value = rng.normal(size=shape)
    size = np.abs(value)
    error = 1e-7 * size * rng.uniform(size=shape)
    if kind == "balls":
        return TileBall(value, error)
    magnitude = size * (1.0 + rng.uniform(size=shape))
    peak = (magnitude + error) * (1.0 + rng.uniform(size=shape))
    return ErrorNumber(RULES[kind], value, magnitude, error, peak)


@pytest.mark.parametrize("erases", [False, True])
@pytest.mark.parametrize("kind", ["balls", *RULES])
@pytest.mark.parametrize("sizes", SIZES)
def test_one_pass_is_all_products(
    kind: str, sizes: tuple[int, ...], erases: bool
) -> None:
    """Values, errors and peaks; states come transposed, turned round and sliced."""
    groups, steps, keys, lanes = sizes
    rng = np.random.default_rng(sum(sizes))

    def by_key(times: int) -> Any:
        return drawn(kind, rng, groups, times, keys, 1)

    lowered = Lowered(
        w=by_key(steps),
        v=drawn(kind, rng, groups, steps, lanes),
        k=by_key(steps if erases else 1),
        r=by_key(steps if erases else 1),
        p=by_key(steps) if erases else None,
        q=by_key(steps) if erases else None,
    )
    states = drawn(kind, rng, steps + 1, groups, keys, lanes).transpose(1, 0, 2, 3)
    g = drawn(kind, rng, groups, steps + 2, keys, lanes)[:, :0:-1][:, 1:]
    obar = drawn(kind, rng, groups, steps, lanes)
    rules = BALLS if kind == "balls" else error_rules(RULES[kind])
    got = contracted(rules, lowered, states, obar, g)
    want = (cotangents_of if erases else contract)(lowered, states, obar, g)
    for name in "wvkrpq":
        one, other = getattr(got, name), getattr(want, name)
        assert (one is None) == (other is None)
        if one is None:
            continue
        assert one.shape == other.shape
        value, *bounds = other.components
        np.testing.assert_array_less(
            np.abs(one.value - value), ULPS * (10.0 + np.abs(value))
        )
        for found, bound in zip(one.components[1:], bounds, strict=True):
            np.testing.assert_allclose(found, bound, rtol=ULPS, atol=0)
