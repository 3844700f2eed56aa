"""Budgets of chunked rank-one kernels hold for those, and are no excuse for others."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from machines.chunk_trial import (
    DTYPES,
    NAMES,
    case_of,
    claim,
    computed,
    drawn,
    judged,
    one_thread,
    ratios,
)
from machines.chunked_rank_one import Machine, run

from scancheck.bounds.budget import budget_for
from scancheck.bounds.rank_one_chunk_system import RankOneChunkSystem
from scancheck.bounds.rules import rules_for
from scancheck.contract import Contract, Structure
from scancheck.errors import CaseInvalid
from scancheck.ops import OPS
from scancheck.ops.custom import custom_op
from scancheck.ops.heads import per_head, per_key, per_lane
from scancheck.ops.normal_form import Lowered
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System

RECIPES = (
    "gaussian_slow",
    "repeated_keys",
    "correlated_keys",
    "orthogonal_keys_wrap",
    "opposite_keys",
    "beta_edges",
    "unnormalised_keys",
    "converged_state",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gates", ["direct", "reverse_cumsum"])
@pytest.mark.parametrize("log", ["none", "diff", "segsum", "factored"])
def test_chunks_have_the_exact_values(name: str, gates: str, log: str) -> None:
    """The bound's own chunk algorithm and its adjoint, against the oracle's steps."""
    if name == "delta_rule" and log != "none":
        return
    tensors, bars = drawn(case_of(name, "correlated_keys", "fp32", 43, 16))
    contract = replace(claim(name, 16), log=log, gate_gradient=gates)
    system = RankOneChunkSystem(rules_for(contract, "fp32"), log, name)
    found = solve(system, OPS[name], tensors, {}, bars, multiple=16)
    truth = solve(Fp64System(), OPS[name], tensors, {}, bars)
    for tensor, ball in (truth.outputs | truth.gradients).items():
        number = (found.outputs | found.gradients)[tensor]
        scale = np.abs(ball.value).max()
        assert np.abs(number.value - ball.value).max() <= 1e-12 * scale, tensor


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("recipe", RECIPES)
def test_chunked_kernels_stay_within_their_budget(
    name: str, dtype: str, recipe: str
) -> None:
    """WY form, and one right-hand side; a last chunk of 11 tokens."""
    way = RECIPES.index(recipe) + NAMES.index(name)
    inverse = ("substitution", "neumann")[way % 2]
    machine = Machine(16, DTYPES[dtype], inverse, wy=way % 4 < 2)
    case = case_of(name, recipe, dtype, 43, 16)
    found = judged(machine, claim(name, 16, inverse=inverse), case)
    assert max(found.values()) <= 1.0, found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("inverse", ["block", "block_rows", "solve"])
@pytest.mark.parametrize("recipe", ["gaussian_slow", "correlated_keys"])
def test_longer_chunks_stay_within_their_budget(
    name: str, inverse: str, recipe: str
) -> None:
    """Chunks of 64, whose inverses kernels merge from blocks, in bf16 and in fp32."""
    if name == "rwkv7" and inverse == "solve":
        return
    declared = "substitution" if inverse == "solve" else "block"
    for dtype in ("fp32", "bf16"):
        machine = Machine(64, DTYPES[dtype], inverse, wy=inverse == "block")
        case = case_of(name, recipe, dtype, 150, 64)
        found = judged(machine, claim(name, 64, inverse=declared), case)
        assert max(found.values()) <= 1.0, found


@pytest.mark.parametrize("name", ["kda", "rwkv7"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_factored_decays_stay_within_their_budget(name: str, dtype: str) -> None:
    """exp(c_t) exp(-c_j) in two operands."""
    machine = Machine(16, DTYPES[dtype], factored=True)
    case = case_of(name, "beta_edges", dtype, 43, 16)
    found = judged(machine, claim(name, 16, log="factored"), case)
    assert max(found.values()) <= 1.0, found


@pytest.mark.parametrize("name", NAMES)
def test_a_budget_is_within_a_few_hundred_of_what_kernels_do(name: str) -> None:
    """A bound that no kernel comes near would say nothing."""
    found = judged(
        Machine(16), claim(name, 16), case_of(name, "beta_edges", "fp32", 43, 16)
    )
    assert found["o"] > 1e-2 and found["final_state"] > 3e-4, found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [16, 64])
def test_a_dropped_carry_is_seen(name: str, chunk: int) -> None:
    """In fp32, and in bf16 where chunks are short."""
    for dtype in ("fp32", "bf16") if chunk == 16 else ("fp32",):
        machine = Machine(chunk, DTYPES[dtype], fault="carry")
        case = case_of(name, "gaussian_slow", dtype, chunk + 5, chunk)
        found = judged(machine, claim(name, chunk), case)
        assert found["final_state"] > 1.0, found


@pytest.mark.parametrize("name", ["gated_delta_rule", "kda"])
def test_a_state_decayed_once_too_often_is_seen(name: str) -> None:
    """The last token's gate counted twice where a chunk hands on its state."""
    case = case_of(name, "gaussian_slow", "fp32", 43, 16)
    found = judged(Machine(16, fault="decayed_twice"), claim(name, 16), case)
    assert found["final_state"] > 1.0, found


@pytest.mark.parametrize("name", NAMES)
def test_a_neumann_series_is_no_substitution(name: str) -> None:
    """One key for a whole chunk: powers of 10^17 where the inverse is within 2."""
    machine = Machine(64, inverse="neumann")
    case = case_of(name, "repeated_keys", "fp32", 70, 64)
    assert max(judged(machine, claim(name, 64), case).values()) > 1.0
    honest = judged(machine, claim(name, 64, inverse="neumann"), case)
    assert max(honest.values()) <= 1.0, honest


@pytest.mark.parametrize("name", NAMES)
def test_a_short_state_has_to_be_declared(name: str) -> None:
    """The state in bf16 between chunks."""
    machine = Machine(16, state=torch.bfloat16)
    case = case_of(name, "beta_edges", "fp32", 43, 16)
    assert judged(machine, claim(name, 16), case)["final_state"] > 1.0
    honest = replace(claim(name, 16), state="bf16", state_every=16)
    assert max(judged(machine, honest, case).values()) <= 1.0


@pytest.mark.parametrize("name", NAMES)
def test_short_operands_have_to_be_declared(name: str) -> None:
    """Operands of products in bf16 where the case is in fp32."""
    machine = Machine(16, torch.bfloat16)
    case = case_of(name, "beta_edges", "fp32", 43, 16)
    assert judged(machine, claim(name, 16), case)["o"] > 1.0
    honest = claim(name, 16, operands="bf16")
    assert max(judged(machine, honest, case).values()) <= 1.0


@pytest.mark.parametrize("name", NAMES)
def test_tiles_do_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile of one chunk at a time gives the same budgets."""
    tensors, bars = drawn(case_of(name, "beta_edges", "fp32", 43, 16))
    whole = budget_for(OPS[name], tensors, {}, claim(name, 16), "fp32", bars)
    monkeypatch.setattr("scancheck.oracles.engine.TILE_ENTRIES", 1)
    tiled = budget_for(OPS[name], tensors, {}, claim(name, 16), "fp32", bars)
    for one, other in (
        (whole.outputs, tiled.outputs),
        (whole.gradients, tiled.gradients),
    ):
        for tensor, allowance in one.items():
            again = other[tensor].error
            assert np.allclose(allowance.error, again, rtol=1e-9, atol=0), tensor


def _with_sigmoid(x: Mapping[str, Any], carry: Any) -> tuple[Lowered, Any]:
    """A gated delta rule of strength sigmoid(b), which hands on beta k and w k only."""
    k, strength = per_key(x["k"], 2), per_head(x["b"]).sigmoid()
    log_w = per_head(x["g"])
    w, written = log_w.exp(), strength * k
    lowered = Lowered(
        w=w,
        log_w=log_w,
        p=-written,
        q=w * k,
        k=written,
        v=per_lane(x["v"]),
        r=per_key(x["q"] * x["scale"], 2),
        erases_decayed=True,
    )
    return lowered, carry


def test_a_custom_rule_has_budgets_in_chunks() -> None:
    """Its k and beta are taken apart, and gradients go through its own lowering."""
    inputs = {"q": "B T H K", "k": "B T H K", "v": "B T HV V"}
    inputs |= {"g": "B T HV", "b": "B T HV"}
    op = custom_op(
        "sigmoid_rule",
        _with_sigmoid,
        inputs=inputs,
        like="gated_delta_rule",
        ranges={"b": (-3.0, 3.0)},
        rank_one=True,
    ).op
    case = case_of("gated_delta_rule", "correlated_keys", "fp32", 43, 16)
    tensors, bars = drawn(case)
    del tensors["beta"]
    rng = np.random.default_rng(2)
    drawn_b = rng.uniform(-3.0, 3.0, tensors["g"].shape)
    tensors["b"] = drawn_b.astype(np.float32).astype(np.float64)
    leaves = {
        n: torch.tensor(x, dtype=torch.float32, requires_grad=True)
        for n, x in tensors.items()
    }
    given = {n: x for n, x in leaves.items() if n != "b"}
    with one_thread():
        outputs = run(
            Machine(16), "gated_delta_rule", {**given, "beta": leaves["b"].sigmoid()}
        )
        cotangents = [
            torch.tensor(bars[n], dtype=torch.float32) for n in ("o", "final_state")
        ]
        gradients = torch.autograd.grad(outputs, list(leaves.values()), cotangents)
    names = ["o", "final_state", *leaves]
    values = zip(names, [*outputs, *gradients], strict=True)
    got = {n: x.detach().double().numpy() for n, x in values}
    contract = claim("gated_delta_rule", 16)
    budget = budget_for(op, tensors, {}, contract, "fp32", bars)
    truth = solve(Fp64System(), op, tensors, {}, bars)
    found = ratios(got, truth, budget)
    assert min(found.values()) > 1e-5 and max(found.values()) <= 1.0, found


@pytest.mark.parametrize("name", ["gated_delta_rule", "kda", "rwkv7"])
def test_strong_gates_stay_within_their_budget(name: str) -> None:
    """Decays that underflow, also in fp64; differences of sums of 10^4 lose digits."""
    case = case_of(name, "beta_edges", "fp32", 43, 16)
    tensors, bars = drawn(case)
    gate = "w" if name == "rwkv7" else "g"
    strength = 10.0 ** np.random.default_rng(0).uniform(-3, 4, tensors[gate].shape)
    tensors[gate] = -strength.astype(np.float32).astype(np.float64)
    got = computed(Machine(16), case, tensors, bars)
    truth = solve(Fp64System(), OPS[name], tensors, {}, bars)
    for log, holds in (("diff", True), ("segsum", False)):
        contract = claim(name, 16, log=log)
        budget = budget_for(OPS[name], tensors, {}, contract, "fp32", bars)
        found = ratios(got, truth, budget)
        assert (max(found.values()) <= 1.0) == holds, (log, found)
        overflows = [a.overflows.any() for a in budget.gradients.values()]
        assert not any(overflows)


@pytest.mark.parametrize("steps", [0, 1, 15])
@pytest.mark.parametrize("name", NAMES)
def test_short_sequences_have_budgets(name: str, steps: int) -> None:
    """No token at all, one, and less than a chunk."""
    tensors, bars = drawn(case_of(name, "beta_edges", "fp32", steps, 16))
    budget = budget_for(OPS[name], tensors, {}, claim(name, 16), "fp32", bars)
    for allowance in (budget.outputs | budget.gradients).values():
        assert np.isfinite(allowance.error).all() and not allowance.overflows.any()


def test_a_factored_form_leaves_the_range() -> None:
    """exp(-c) of strong gates in fp16 operands is excused, differences are not."""
    tensors, _ = drawn(case_of("kda", "beta_edges", "fp16", 40, 16))
    tensors["g"] = np.full_like(tensors["g"], -2.0)
    for log, leaves in (("factored", True), ("diff", False)):
        contract = claim("kda", 16, log=log)
        budget = budget_for(OPS["kda"], tensors, {}, contract, "fp16")
        assert budget.outputs["o"].overflows.any() == leaves


@pytest.mark.parametrize(
    ("op", "contract", "words"),
    [
        (
            "kda",
            claim("kda", 16, log="full"),
            "contract log: expected one of none, diff, segsum, factored for kda",
        ),
        (
            "delta_rule",
            claim("kda", 16),
            "contract log=diff: expected log gates, which delta_rule",
        ),
        (
            "kda",
            replace(
                claim("kda", 16),
                structure=Structure(kind="chunk", chunk=16, carry="tree"),
            ),
            "contract structure: expected chunk\\(C, inner, sequential\\)",
        ),
        ("kda", Contract(), "contract structure: expected sequential or chunk\\(C\\)"),
        (
            "delta_rule",
            replace(claim("delta_rule", 16), comp="kahan"),
            "contract comp: expected none",
        ),
        (
            "kda",
            Contract(structure=Structure(kind="sequential"), inverse="block"),
            "contract inverse: expected substitution",
        ),
    ],
)
def test_contracts_without_a_bound_are_refused(
    op: str, contract: Contract, words: str
) -> None:
    """The message names what was expected."""
    tensors, _ = drawn(case_of(op, "beta_edges", "fp32", 20, 16))
    with pytest.raises(CaseInvalid, match=words):
        budget_for(OPS[op], tensors, {}, contract, "fp32")
