"""Drawn roundings of a chunked contract are as large as those of kernels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from machines.chunk_trial import DTYPES, NAMES, case_of, claim, computed
from machines.chunked_rank_one import Machine

from scancheck.bounds.contract_emulation import emulated_for
from scancheck.bounds.moments import rho, rho_limit
from scancheck.case import Case, make_case
from scancheck.checks.oracle import Request, check_case
from scancheck.contract import Contract, Structure
from scancheck.formats import FORMATS, round_array
from scancheck.ops import OPS
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.recipes import build
from scancheck.registry import resolve_target

CHUNKS = ((16, "substitution"), (64, "block"))
CHAINS = 32  # of the cases here: B HV V
SEQUENTIAL = Structure(kind="sequential")
STEPS = ("delta_rule", "gated_delta_rule", "kda", "gated_delta_product", "rwkv7")


def found_rho(machine: Machine, contract: Contract, case: Case) -> dict[str, float]:
    """rho of each output."""
    op, tensors = OPS[case.op], build(case).tensors
    roots = emulated_for(op, tensors, {}, contract, case.dtype)
    assert roots is not None
    truth = solve(Fp64System(), op, tensors, {}).outputs
    got = computed(machine, case, tensors)
    return {n: rho(got[n] - truth[n].value, roots[n]) for n in got}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(("chunk", "inverse"), CHUNKS)
def test_right_kernels_have_a_rho_near_one(
    name: str, dtype: str, chunk: int, inverse: str
) -> None:
    """Both bracketings of the WY form; numerics 2.8 has 0.63 to 0.99."""
    case = case_of(name, "gaussian_slow", dtype, 2 * chunk + 11, chunk)
    contract = claim(name, chunk, inverse=inverse)
    for wy in (True, False):
        machine = Machine(chunk, DTYPES[dtype], inverse, wy=wy)
        found = found_rho(machine, contract, case)
        assert all(0.5 < x < 1.5 for x in found.values()), found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("chunk", "inverse"), CHUNKS)
def test_fp32_is_within_the_limit(name: str, chunk: int, inverse: str) -> None:
    """Exponentials count with the largest error that the contract allows them."""
    case = case_of(name, "gaussian_slow", "fp32", 2 * chunk + 11, chunk)
    contract = claim(name, chunk, inverse=inverse)
    found = found_rho(Machine(chunk, inverse=inverse), contract, case)
    assert all(0.05 < x < 1.5 for x in found.values()), found


@pytest.mark.parametrize("name", NAMES)
def test_what_a_sound_budget_hides_is_seen(name: str) -> None:
    """Operands in bf16 where fp16 was claimed, and a state in bf16."""
    case = case_of(name, "gaussian_slow", "fp16", 43, 16)
    limit = rho_limit(CHAINS)
    short = found_rho(Machine(16, torch.bfloat16), claim(name, 16), case)
    assert min(short.values()) > limit, short
    machine = Machine(16, torch.float16, state=torch.bfloat16)
    assert found_rho(machine, claim(name, 16), case)["final_state"] > limit
    honest = replace(claim(name, 16), state="bf16", state_every=16)
    found = found_rho(machine, honest, case)
    assert all(0.5 < x < 1.5 for x in found.values()), found


@pytest.mark.parametrize("name", ["gated_delta_rule", "kda"])
def test_a_wrong_gate_is_seen_in_bf16(name: str) -> None:
    """One gate counted twice at each edge, below the sound budget."""
    case = case_of(name, "beta_edges", "bf16", 43, 16)
    machine = Machine(16, torch.bfloat16, fault="decayed_twice")
    found = found_rho(machine, claim(name, 16), case)
    assert found["final_state"] > 3.0, found


def test_the_same_draws_every_time() -> None:
    """A verdict depends on nothing but its case."""
    case = case_of("kda", "gaussian_slow", "bf16", 20, 16)
    tensors = build(case).tensors
    one, other = (
        emulated_for(OPS["kda"], tensors, {}, claim("kda", 16), "bf16")
        for _ in range(2)
    )
    assert one is not None and other is not None
    for name, root in one.items():
        assert (root == other[name]).all() and np.isfinite(root).all()


@pytest.mark.parametrize(
    ("op", "contract"),
    [
        ("kda", Contract(structure=SEQUENTIAL, compute="bf16")),
        ("kda", Contract(structure=SEQUENTIAL, comp="kahan")),
        ("kda", claim("kda", 16, compute="bf16")),
        ("gla", claim("kda", 16)),
        ("kda", claim("kda", 16, accumulate="truncate")),
    ],
)
def test_others_have_none(op: str, contract: Contract) -> None:
    """Short and compensated computation, diagonal transitions, truncated sums."""
    assert emulated_for(OPS[op], {}, {}, contract, "fp32") is None


def rho_of_steps(
    name: str,
    dtype: str,
    contract: Contract | None = None,
    state: torch.dtype | None = None,
) -> dict[str, float]:
    """rho of each output of the steps: a CPU model's, or with states in a format.

    The contract is the model's unless one is given.
    """
    sizes = {"B": 2, "T": 200, "H": 1, "HV": 2, "K": 16, "V": 8, "M": 2}
    known = {axis: sizes[axis] for axis in OPS[name].size_names}
    case = make_case(
        name,
        known if "HV" in known else known | {"H": 2},
        dtype=dtype,
        recipe="gaussian_slow",
        seed=3,
        options={"initial_state": True},
    )
    (kernel,) = resolve_target(f"model.{name}.sequential.plain", None)
    contract = contract or kernel.contract
    assert contract is not None
    report = check_case(kernel, case, Request(contract=contract, runs=1))
    got = {n: np.array(x) for n, x in report.outcome.outputs.items()}
    tensors = report.inputs.tensors
    if state is not None:
        given = {n: torch.tensor(x, dtype=torch.float32) for n, x in tensors.items()}
        o, final = gated_steps(state, **given)
        store = FORMATS[dtype]
        got = {
            "o": round_array(store, o.double().numpy()),
            "final_state": final.numpy(),
        }
    roots = emulated_for(OPS[name], tensors, {}, contract, dtype)
    assert roots is not None
    truth = report.truth.outputs
    return {n: rho(got[n] - truth[n].hi, roots[n]) for n in got}


def gated_steps(
    state: torch.dtype, **x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated delta rule with one key head, its state rounded after every step."""
    q, k = (x[n].expand(-1, -1, x["v"].shape[2], -1) for n in ("q", "k"))
    s, read = x["initial_state"], []
    for t in range(q.shape[1]):
        s = s * x["g"][:, t, :, None, None].exp()
        seen = (s * k[:, t, :, :, None]).sum(2)
        new = x["beta"][:, t, :, None] * (x["v"][:, t] - seen)
        s = (s + k[:, t, :, :, None] * new[:, :, None, :]).to(state).float()
        read.append((s * q[:, t, :, :, None]).sum(2) * q.shape[3] ** -0.5)
    return torch.stack(read, 1), s


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_steps_have_a_rho_near_one(name: str, dtype: str) -> None:
    """Those of the CPU models, which round nothing else than they declare."""
    found = rho_of_steps(name, dtype)
    assert all(0.5 < x < 1.5 for x in found.values()), found


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_short_state_is_seen_in_steps(dtype: str) -> None:
    """States in bf16 where fp32 was claimed; where that is declared they are right."""
    given = "gated_delta_rule", dtype
    short = rho_of_steps(*given, Contract(structure=SEQUENTIAL), torch.bfloat16)
    assert short["final_state"] > rho_limit(CHAINS), short
    honest = Contract(structure=SEQUENTIAL, state="bf16")
    found = rho_of_steps(*given, honest, torch.bfloat16)
    assert all(0.5 < x < 1.5 for x in found.values()), found


def test_the_same_steps_every_time() -> None:
    """A verdict depends on nothing but its case, however many threads there are."""
    one, other = (rho_of_steps("kda", "fp32") for _ in range(2))
    assert one == other
