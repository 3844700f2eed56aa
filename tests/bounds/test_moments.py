"""Second moments: rho of right kernels, its limit, and what exceeds it."""

import math

import numpy as np
import pytest
from machines.emulator import (
    Entry,
    Machine,
    Scan,
    blelloch,
    chunked,
    hillis_steele,
    sequential,
)
from machines.selective import Draw, run, tensors
from machines.trial import LINEAR_SCAN, Data, computed, exact, with_cotangents
from numpy.typing import NDArray

from scancheck.bounds.moments import (
    RHO_CEILING,
    RMS_OF_ROUNDING,
    lambda_factor,
    moments_for,
    rho,
    rho_limit,
)
from scancheck.contract import Contract, ErrorModel, Structure
from scancheck.formats import BF16, FORMATS, FP16, FP32, Format, round_array
from scancheck.ops.selective_scan import SELECTIVE_SCAN
from scancheck.oracles.fp64 import solve_fp64

FloatArray = NDArray[np.float64]
CHAINS = 64
EXACT_EXP = ErrorModel(e0=1.01)

PROGRAMS: dict[str, tuple[Scan, Structure]] = {
    "sequential": (sequential, Structure(kind="sequential")),
    "hillis_steele": (hillis_steele, Structure(kind="tree")),
    "blelloch": (blelloch, Structure(kind="tree")),
    "chunk": (chunked(16), Structure(kind="chunk", chunk=16)),
    "chunk of trees": (
        chunked(16, "tree"),
        Structure(kind="chunk", chunk=16, inner="tree"),
    ),
}


def gaussian(fmt: Format, seed: int, steps: int, chains: int = CHAINS) -> Data:
    """Gaussian data at gates whose memory goes from a few steps to hundreds."""
    rng = np.random.default_rng(seed)
    a = 1.0 - 2.0 ** -rng.uniform(2, 9, chains) * rng.uniform(0.5, 1, (steps, chains))
    b, s = rng.normal(size=(steps, chains)), rng.normal(size=chains)
    parts = (round_array(fmt, part) for part in (a, b, s))
    return with_cotangents(fmt, *parts, seed + 1000)


def roots(data: Data, contract: Contract, dtype: str) -> dict[str, FloatArray]:
    """sqrt(v) of a linear scan, without the batch axis."""
    found = moments_for(LINEAR_SCAN, data.tensors, {}, contract, dtype, data.cotangents)
    assert found is not None
    return {name: root[0] for name, root in found.items()}


@pytest.mark.parametrize("steps", [1, 30, 300])
def test_the_moment_of_a_sequential_scan_is_the_companion_of_the_oracle(
    steps: int,
) -> None:
    """v of h is u^2 V, with V of the fp64 oracle, another program."""
    data = gaussian(FP32, 0, steps)
    solution = solve_fp64(LINEAR_SCAN, data.tensors, {}, companions=True)
    v = solution.companions["V"][0] * FP32.unit_roundoff**2
    got = roots(data, Contract(ftz="no"), "fp32")["h"]
    assert np.allclose(got**2, v, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_rho_of_right_kernels_is_near_one(program: str, dtype: str) -> None:
    """fp32 computation on each storage format: rho in 0.3 .. 1.3 for every tensor."""
    scan, structure = PROGRAMS[program]
    fmt = FORMATS[dtype]
    for seed in range(2):
        data = gaussian(fmt, seed, 80)
        want = exact(data)
        root = roots(data, Contract(structure=structure), dtype)
        for name, got in computed(scan, Machine(fmt=FP32), data).items():
            stored = got if name == "initial_state" else round_array(fmt, got)
            found = rho(np.asarray(stored - want[name], dtype=float), root[name])
            assert 0.3 < found < 1.3, name


def test_short_computation_has_no_moments_since_its_roundings_repeat() -> None:
    """bf16 at slow decays errs one way: rho of a right kernel passes the limit."""
    data = gaussian(BF16, 3, 80)
    got = computed(sequential, Machine(fmt=BF16), data)["h"]
    error = np.asarray(got - exact(data)["h"], dtype=float)
    contract = Contract(compute="bf16")
    tensors = data.tensors
    assert moments_for(LINEAR_SCAN, tensors, {}, contract, "bf16") is None
    # The moment that fp32 computation has, scaled to bf16.
    longer = roots(data, Contract(), "fp32")["h"]
    ulps = BF16.unit_roundoff / FP32.unit_roundoff
    assert rho(error, longer * ulps) > rho_limit(CHAINS)


@pytest.mark.parametrize("every", [1, 16])
def test_a_kept_state_is_part_of_the_moment(every: int) -> None:
    """bf16 state at every step or chunk edge: near one declared, far above not."""
    data = gaussian(FP32, 5, 80)
    got = computed(_kept(BF16, every), Machine(fmt=FP32), data)["h"]
    error = np.asarray(got - exact(data)["h"], dtype=float)
    declared = Contract(state="bf16", state_every=every)
    assert 0.3 < rho(error, roots(data, declared, "fp32")["h"]) < 1.3
    assert rho(error, roots(data, Contract(), "fp32")["h"]) > rho_limit(CHAINS)


def _kept(fmt: Format, every: int) -> Scan:
    def scan(a: list[Entry], b: list[Entry], s: Entry) -> list[Entry]:
        out = []
        for t, (x, y) in enumerate(zip(a, b, strict=True)):
            s = x * (s.stored(fmt) if t % every == 0 else s) + y
            out.append(s)
        return out

    return scan


def test_the_limit_holds_over_many_draws() -> None:
    """200 draws of 16 chains: no tensor of a right kernel passes the limit."""
    draws, chains = 200, 16
    data = gaussian(FP32, 11, 40, draws * chains)
    want = exact(data)
    root = roots(data, Contract(), "fp32")
    for scan, _ in PROGRAMS.values():
        for name, got in computed(scan, Machine(fmt=FP32), data).items():
            error = np.asarray(got - want[name], dtype=float)
            for draw in range(draws):
                part = (..., slice(draw * chains, (draw + 1) * chains))
                assert rho(error[part], root[name][part]) < rho_limit(chains)


def test_the_largest_error_stays_below_lambda() -> None:
    """No element of 1e6 exceeds lambda sqrt(v), and lambda is not far from the top."""
    data = gaussian(FP32, 12, 100, 10_000)
    root = roots(data, Contract(), "fp32")["h"]
    got = computed(sequential, Machine(fmt=FP32), data)["h"]
    worst = np.max(np.abs(got - exact(data)["h"]) / root)
    limit = lambda_factor(root.size, 1e-6)
    assert 0.25 * limit < worst < limit


MUTANTS = {
    "state in bf16, undeclared": lambda s: round_array(BF16, s),
    "state in fp16, undeclared": lambda s: round_array(FP16, s),
    "carry off by one per cent": lambda s: 0.99 * s,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_exceed_the_limit(name: str) -> None:
    """A wrong carry or a shorter state every 16 steps shows in rho."""
    data = gaussian(FP32, 6, 80)
    mutate = MUTANTS[name]

    def scan(a: list[Entry], b: list[Entry], s: Entry) -> list[Entry]:
        out = []
        for t, (x, y) in enumerate(zip(a, b, strict=True)):
            if t and t % 16 == 0:
                s = s.tape.entry(mutate(s.value))
            s = x * s + y
            out.append(s)
        return out

    got = computed(scan, Machine(fmt=FP32), data)["h"]
    error = np.asarray(got - exact(data)["h"], dtype=float)
    assert rho(error, roots(data, Contract(), "fp32")["h"]) > rho_limit(CHAINS)


@pytest.mark.parametrize("program", ["sequential", "hillis_steele", "chunk"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_rho_of_selective_scan(program: str, dtype: str) -> None:
    """Outputs and gradients of the fused op: rho in 0.2 .. 1.4, mostly near one."""
    scan, structure = PROGRAMS[program]
    fmt = FORMATS[dtype]
    inputs, bars = tensors(Draw(), fmt, 2, 8, CHAINS)
    want = run(Machine(fmt=FP32, direction="exact"), sequential, inputs, bars)
    with np.errstate(all="ignore"):
        got = run(Machine(fmt=FP32), scan, inputs, bars)
    contract = Contract(
        structure=structure, exp=EXACT_EXP, softplus=EXACT_EXP,
        silu=ErrorModel(e0=2.0),
    )  # fmt: skip
    switches = {"delta_softplus": True}
    root = moments_for(SELECTIVE_SCAN, inputs, switches, contract, dtype, bars)
    assert root is not None
    wide = ("initial_state", "last_state")
    assert root.keys() == want.keys() - {"A", "D", "delta_bias"}
    for name in root:
        stored = (
            got[name] if name in wide else round_array(fmt, got[name].astype(float))
        )
        found = rho(np.asarray(stored - want[name], dtype=float), root[name])
        assert 0.2 < found < 1.4, name


def test_subnormal_data_has_a_floor() -> None:
    """v takes in what underflow adds: rho stays near one below the normal range."""
    rng = np.random.default_rng(0)
    a = round_array(FP32, rng.uniform(0.3, 0.9, (60, CHAINS)))
    b = round_array(FP32, rng.normal(size=(60, CHAINS)) * 2.0**-142)
    data = with_cotangents(FP32, a, b, b[0])
    got = computed(sequential, Machine(fmt=FP32), data)["h"]
    error = np.asarray(got - exact(data)["h"], dtype=float)
    assert 0.3 < rho(error, roots(data, Contract(ftz="no"), "fp32")["h"]) < 1.3


@pytest.mark.parametrize(
    "contract",
    [
        Contract(comp="kahan"),
        Contract(comp="full", structure=Structure(kind="tree")),
        Contract(log="diff"),
    ],
)
def test_no_moments_where_roundings_are_not_independent(contract: Contract) -> None:
    """Compensated and log-space contracts have none."""
    data = gaussian(FP32, 0, 4)
    assert moments_for(LINEAR_SCAN, data.tensors, {}, contract, "fp32") is None


def test_the_constants_are_those_of_their_formulas() -> None:
    """0.425 is the RMS of one rounding; limits and lambda by hand."""
    significands = 2.0 ** np.random.default_rng(0).random(400_000)
    off = round_array(BF16, significands) - significands
    measured = math.sqrt(np.mean((off / significands) ** 2)) / BF16.unit_roundoff
    assert abs(measured / RMS_OF_ROUNDING - 1.0) < 0.01
    assert abs(RHO_CEILING * RMS_OF_ROUNDING - 1.0) < 3e-3
    assert rho_limit(18) == pytest.approx(2.35 * 1.5)
    assert lambda_factor(500, 1e-3) == pytest.approx(math.sqrt(2 * math.log(1e6) + 1))
    assert rho(np.zeros(3), np.zeros(3)) == 0.0
    assert rho(np.ones(3), np.zeros(3)) == math.inf
