"""Chunks that are matrix products add up their terms in an order of their own.

Each kept case is one that fuzzing of a right model found, in its plainest form.
"""

from typing import Any

import numpy as np
import pytest

from scancheck.bounds.budget import budget_for
from scancheck.bounds.earlier_keys import Earlier, earlier_in_chunk, nothing_begun
from scancheck.contract import Contract, Structure
from scancheck.kernel import Kernel
from scancheck.kernels.models.catalog import model
from scancheck.kernels.models.chunk_catalog import chunk_model
from scancheck.ops import OPS
from scancheck.oracles.ladder import certify
from scancheck.recipes.inputs import Inputs
from scancheck.runner import execute

STEPS = 40


def ratio_of(
    kernel: Kernel, tensors: dict[str, Any], bars: dict[str, Any], gradient: str
) -> float:
    """The largest error of a gradient in fp32 over its budget."""
    op = OPS[kernel.op]
    assert kernel.contract is not None
    budget = budget_for(op, tensors, {}, kernel.contract, "fp32", bars)
    allowed = budget.gradients[gradient].error
    allowance = {n: a.error for n, a in (budget.outputs | budget.gradients).items()}
    truth = certify(op, tensors, {}, bars, allowance).gradients[gradient]
    inputs = Inputs(tensors=tensors, switches={})
    outcome = execute(kernel, op, inputs, "fp32", cotangents=bars, runs=1)
    assert outcome.problem is None
    error = np.abs(outcome.gradients[gradient] - truth.hi - truth.lo)
    return float((error / allowed).max())


@pytest.mark.parametrize("variant", ["plain", "log_diff", "log_segsum"])
def test_the_latest_term_of_an_adjoint_may_be_added_first(variant: str) -> None:
    """1, and then terms of a little more than half an ulp of it: each sum rounds up."""
    shape = 1, STEPS, 1, 1
    bar = np.full(shape, 2.0**-24 + 2.0**-34)
    bar[0, 0] = 1.0
    tensors = {
        "q": np.ones(shape),
        "k": np.zeros(shape),
        "v": np.zeros(shape),
        "g": np.zeros(shape[:3]),
        "initial_state": np.zeros((1, 1, 1, 1)),
    }
    kernel = chunk_model("simple_gla", variant)
    ratio = ratio_of(kernel, tensors, {"o": bar}, "initial_state")
    # A bound that took additions to come with age was an eighth of this error.
    assert 0.2 < ratio <= 1.0


@pytest.mark.parametrize("block", [None, 16])
def test_terms_of_a_gate_underflow_one_by_one(block: int | None) -> None:
    """The last gate has the whole chunk's products below the normal range."""
    shape = 1, STEPS, 1, 1
    tensors = {
        "r": np.zeros(shape),
        "k": np.ones(shape),
        "v": np.full(shape, 3 * 2.0**-130),
        "w": np.zeros(shape),
        "u": np.zeros((1, 1)),
    }
    # Each product, 3 times half the smallest number, is rounded to twice that number;
    # what the state has lost is nothing, times so small a cotangent.
    bars = {"final_state": np.full((1, 1, 1, 1), 2.0**-20)}
    kernel = chunk_model("rwkv6", "log_diff", block=block)
    assert 0.2 < ratio_of(kernel, tensors, bars, "w") <= 1.0


SHORT, SMALL = 2.0**-20, 3 * 2.0**-130  # their product is rounded by a third


@pytest.mark.parametrize("variant", ["plain", "log_diff"])
@pytest.mark.parametrize("gradient", ["q", "k", "v"])
def test_scores_underflow_beside_each_token(variant: str, gradient: str) -> None:
    """A score of a normal size times what is below the range, for every token."""
    shape = 1, STEPS, 1, 1
    of_score, met = {
        "q": (("v",), "k"),
        "k": (("v",), "q"),
        "v": (("q",), "bar"),
    }[gradient]
    given = {name: np.ones(shape) for name in ("q", "k", "v", "bar")}
    for name in of_score:
        given[name] = np.full(shape, SHORT)
    given[met] = np.full(shape, SMALL)
    bar = given.pop("bar")
    tensors = given | {"g": np.zeros(shape[:3])}
    kernel = chunk_model("simple_gla", variant)
    assert 0.04 < ratio_of(kernel, tensors, {"o": bar}, gradient) <= 1.0


@pytest.mark.parametrize("gradient", ["r", "k", "v", "u"])
def test_a_bonus_underflows_in_every_lane(gradient: str) -> None:
    """Where diag(u) k v^T is added to the state, each of its entries is rounded."""
    width = 32
    shape = {"r": (1, 1, 1, 1), "k": (1, 1, 1, 1), "v": (1, 1, 1, width), "u": (1, 1)}
    if gradient == "v":
        shape |= {"r": (1, 1, 1, width), "k": (1, 1, 1, width), "v": (1, 1, 1, 1)}
        shape["u"] = (1, width)
    given = {name: np.ones(size) for name, size in shape.items()}
    given["w"], bar = np.zeros(shape["r"]), np.ones(shape["v"])
    small = "k" if gradient == "v" else "v"
    given[small] = np.full(shape[small], SMALL)
    short = "r" if gradient == "u" else "u"
    given[short] = np.full(shape[short], SHORT)
    kernel = model("rwkv6", "sequential", "plain")
    assert 0.1 < ratio_of(kernel, given, {"o": bar}, gradient) <= 1.0


def test_scans_in_chunks_are_added_up_as_they_age() -> None:
    """A chunked scan of an op without keys has the same budgets as before."""
    a, b = np.full((1, STEPS, 1), 0.25), np.ones((1, STEPS, 1))
    contract = Contract(structure=Structure(kind="chunk", chunk=64))
    found = budget_for(OPS["linear_scan"], {"a": a, "b": b}, {}, contract, "fp32")
    assert found.outputs["h"].error[0, -1, 0] < 8 * 2.0**-24


@pytest.mark.parametrize("cuts", [(23,), (5, 18), (1, 1, 21), (8, 8, 7)])
@pytest.mark.parametrize("first", [0, -1, 3])
def test_earlier_tokens_of_a_chunk(cuts: tuple[int, ...], first: int) -> None:
    """Sums and maxima over the tokens before, in the same chunk, over tile edges."""
    rng = np.random.default_rng(1)
    keys, values = rng.uniform(size=(2, 23, 3)), rng.uniform(size=(2, 23, 4))
    chunk, begun, at, parts = 8, nothing_begun(2, 3, 4), 0, []
    for steps in cuts:
        here = slice(at, at + steps)
        part, begun = earlier_in_chunk(
            keys[:, here], values[:, here], first + at, chunk, begun
        )
        parts.append(part)
        at += steps
    found = Earlier(
        np.concatenate([part.keys for part in parts], 1),
        np.concatenate([part.values for part in parts], 1),
        np.concatenate([part.number for part in parts]),
    )
    for t in range(23):
        place = (first + t) % chunk
        before = slice(max(0, t - place), t)
        np.testing.assert_allclose(found.keys[:, t], keys[:, before].sum(1))
        top = values[:, before].max(1, initial=0.0)
        assert np.array_equal(found.values[:, t], top)
        assert found.number[t] == place
