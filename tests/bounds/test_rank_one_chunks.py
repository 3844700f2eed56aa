"""Budgets of chunked rank-one kernels hold for those, and are no excuse for others."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from machines.chunked_rank_one import Machine, run
from numpy.typing import NDArray

from scancheck.bounds.budget import Budget, budget_for
from scancheck.bounds.rank_one_chunk_system import RankOneChunkSystem
from scancheck.bounds.rules import rules_for
from scancheck.case import Case, make_case
from scancheck.contract import Contract, ErrorModel, Structure
from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS, round_array
from scancheck.ops import OPS
from scancheck.oracles.ball import certified_radius
from scancheck.oracles.engine import Solution, solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.recipes import build
from scancheck.recipes.inputs import cotangents

FloatArray = NDArray[np.float64]
Tensors = dict[str, FloatArray]

NAMES = ("delta_rule", "gated_delta_rule", "kda", "rwkv7")
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
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# torch's exponential of a float is within two ulps.
CONTRACT = Contract(operands="storage", exp=ErrorModel(e0=4.0, e1=0.0))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Matrices this small are slower on several threads, on a busy machine by far."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def claim(op: str, chunk: int, **more: str) -> Contract:
    """The contract of the machine's chunks."""
    log = "none" if op == "delta_rule" else "diff"
    structure = Structure(kind="chunk", chunk=chunk)
    return replace(CONTRACT, **{"structure": structure, "log": log, **more})


def case_of(op: str, recipe: str, dtype: str, steps: int, chunk: int) -> Case:
    """Two rows of two heads, with an initial state."""
    heads = {"H": 2} if op == "rwkv7" else {"H": 1, "HV": 2}
    return make_case(
        op,
        {"B": 2, "T": steps, **heads, "K": 16, "V": 8},
        dtype=dtype,
        recipe=recipe,
        seed=1,
        options={"chunk": chunk, "initial_state": True},
    )


def drawn(case: Case) -> tuple[Tensors, Tensors]:
    """Tensors and dense cotangents."""
    return build(case).tensors, cotangents(case, "dense", case.seed)


def computed(machine: Machine, case: Case, tensors: Tensors, bars: Tensors) -> Tensors:
    """Outputs and gradients of the machine, stored as the case says."""
    op = OPS[case.op]
    leaves = {n: torch.tensor(x, dtype=torch.float32) for n, x in tensors.items()}
    for leaf in leaves.values():
        leaf.requires_grad_()
    outputs = run(machine, case.op, leaves)
    names = [spec.name for spec in op.outputs]
    given = [torch.tensor(bars[n], dtype=torch.float32) for n in names]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), given)
    got = dict(zip([*names, *leaves], [*outputs, *gradients], strict=True))
    kinds = {spec.name: spec.kind for spec in (*op.inputs, *op.outputs)}
    return {
        n: round_array(
            FORMATS[case.dtype if kinds[n] == "storage" else "fp32"],
            x.detach().double().numpy(),
        )
        for n, x in got.items()
    }


def ratios(got: Tensors, truth: Solution, budget: Budget) -> dict[str, float]:
    """The largest error over its budget, where the budget says that there is one."""
    allowed = budget.outputs | budget.gradients
    found = {}
    for name, ball in (truth.outputs | truth.gradients).items():
        bound = allowed[name].error + certified_radius(ball)
        ratio = np.abs(got[name] - ball.value) / bound
        excused = allowed[name].overflows
        found[name] = float(np.where(excused, 0.0, np.nan_to_num(ratio, nan=9.0)).max())
    return found


def judged(machine: Machine, contract: Contract, case: Case) -> dict[str, float]:
    """Ratios of a machine under a contract on a case."""
    tensors, bars = drawn(case)
    budget = budget_for(OPS[case.op], tensors, {}, contract, case.dtype, bars)
    truth = solve(Fp64System(), OPS[case.op], tensors, {}, bars)
    return ratios(computed(machine, case, tensors, bars), truth, budget)


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
