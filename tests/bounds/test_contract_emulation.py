"""Drawn roundings of a chunked contract are as large as those of kernels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from machines.chunk_trial import DTYPES, NAMES, case_of, claim, computed
from machines.chunked_rank_one import Machine

from scancheck.bounds.contract_emulation import emulated_for
from scancheck.bounds.moments import rho, rho_limit
from scancheck.case import Case
from scancheck.contract import Contract, Structure
from scancheck.ops import OPS
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.recipes import build

CHUNKS = ((16, "substitution"), (64, "block"))
CHAINS = 32  # of the cases here: B HV V


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
        ("kda", Contract(structure=Structure(kind="sequential"))),
        ("kda", claim("kda", 16, compute="bf16")),
        ("gla", claim("kda", 16)),
        ("kda", claim("kda", 16, accumulate="truncate")),
    ],
)
def test_others_have_none(op: str, contract: Contract) -> None:
    """Steps, short computation, diagonal transitions, truncated sums of fp32."""
    assert emulated_for(OPS[op], {}, {}, contract, "fp32") is None
