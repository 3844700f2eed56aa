"""Functions that err in one direction: counted where allowed, seen where not."""

from collections.abc import Callable

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from scancheck.bounds.contract_emulation import emulated_for
from scancheck.bounds.moments import moments_for, rho, rho_limit
from scancheck.case import Case, make_case
from scancheck.contract import Contract, ErrorModel, Structure
from scancheck.formats import BF16, round_array
from scancheck.kernels.models import cuda_ex2
from scancheck.ops import OPS
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.recipes import build

Float32Array = NDArray[np.float32]
Function = Callable[[Float32Array], Float32Array]
Outputs = dict[str, Float32Array]

SEQUENTIAL = Structure(kind="sequential")
FAST = Contract(structure=SEQUENTIAL)  # exp as CUDA's fast one may be
ROUNDED = Contract(structure=SEQUENTIAL, exp=ErrorModel(e0=1.01))
SIZES = {"B": 1, "T": 512, "H": 2, "HV": 2, "K": 64, "V": 64}
# The first one is the case in which a correct kernel on an H200 was SUSPECT, rho 3.34.
SEEDS = {"gated_delta_rule": 946109469, "simple_gla": 4}


@njit
def _fill(x: Float32Array, table: Float32Array, result: Float32Array) -> None:
    for i in range(len(x)):
        result[i] = cuda_ex2.exp(x[i], table)


def hardware_exp(x: Float32Array) -> Float32Array:
    """exp by the ex2.approx of an H200, from its table."""
    result = np.empty_like(x)
    _fill(x.reshape(-1), cuda_ex2.table(), result.reshape(-1))
    return result


def rounded_exp(x: Float32Array) -> Float32Array:
    """exp rounded once."""
    return np.exp(x.astype(np.float64)).astype(np.float32)


def case_of(op: str) -> Case:
    """Slow gates over 512 tokens."""
    sizes = {axis: SIZES[axis] for axis in OPS[op].size_names}
    return make_case(
        op,
        sizes,
        recipe="gaussian_slow",
        seed=SEEDS[op],
        options={"initial_state": True},
    )


def steps(case: Case, exp: Function, edge: int = 0) -> Outputs:
    """The recurrence in fp32, each operation rounded once but for `exp`.

    With `edge` the state is rounded to bf16 before every so many tokens.
    """
    x = {n: t.astype(np.float32) for n, t in build(case).tensors.items()}
    s, o = x["initial_state"].copy(), np.empty_like(x["v"])
    decays = exp(x["g"])[..., None, None]
    scale = np.float32(x["q"].shape[-1] ** -0.5)
    for t in range(o.shape[1]):
        if edge and t and t % edge == 0:
            s = round_array(BF16, s.astype(np.float64)).astype(np.float32)
        s = s * decays[:, t]
        k, v = x["k"][:, t, ..., None], x["v"][:, t, :, None, :]
        if "beta" in x:
            v = v - (s * k).sum(2, keepdims=True)
            v = v * x["beta"][:, t, :, None, None]
        s = s + k * v
        o[:, t] = (s * (x["q"][:, t] * scale)[..., None]).sum(2)
    return {"o": o, "final_state": s}


def rhos(case: Case, got: Outputs, contract: Contract) -> dict[str, float]:
    """rho of both outputs."""
    op, tensors = OPS[case.op], build(case).tensors
    form = moments_for if op.diagonal else emulated_for
    roots = form(op, tensors, {}, contract, case.dtype)
    assert roots is not None
    truth = solve(Fp64System(), op, tensors, {}).outputs
    return {n: rho(got[n] - truth[n].value, roots[n]) for n in got}


@pytest.mark.parametrize("op", SEEDS)
def test_the_bias_of_a_fast_exp_is_no_suspect(op: str) -> None:
    """All else is rounded to nearest; claimed as one rounding, exp's bias is seen."""
    case = case_of(op)
    got = steps(case, hardware_exp)
    limit = rho_limit(SIZES["H"] * SIZES["V"])
    found = rhos(case, got, FAST)
    assert all(0.05 < x < 1.0 for x in found.values()), found
    assert rhos(case, got, ROUNDED)["final_state"] > limit


@pytest.mark.parametrize("op", SEEDS)
def test_a_rounded_exp_is_within_its_claim(op: str) -> None:
    """Near one where no more than one rounding is allowed."""
    case = case_of(op)
    found = rhos(case, steps(case, rounded_exp), ROUNDED)
    assert all(0.3 < x < 1.3 for x in found.values()), found


@pytest.mark.parametrize("op", SEEDS)
def test_a_bias_hides_no_short_state(op: str) -> None:
    """A carry in bf16 at the edges of chunks is beyond what a fast exp explains."""
    case = case_of(op)
    limit = rho_limit(SIZES["H"] * SIZES["V"])
    found = rhos(case, steps(case, hardware_exp, edge=64), FAST)
    assert min(found.values()) > limit, found


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_what_more_a_function_may_be_off_by_counts_in_full(dtype: str) -> None:
    """v grows by the square of the sum of e0 - u over all steps.

    One state of one that decays and meets nothing: after n steps it may be off by n
    times (e0 - 1) u of its value.
    """
    n, e0 = 40, 5.0
    unit = 2.0**-24 if dtype == "fp32" else 2.0**-53
    tensors = {
        "g": np.full((1, n, 1), -(2.0**-7)),
        "b": np.zeros((1, n, 1)),
        "initial_state": np.ones((1, 1)),
    }
    op = OPS["linear_scan"]
    wide, narrow = (
        moments_for(op, tensors, {}, Contract(exp=ErrorModel(e0=e)), dtype)
        for e in (e0, 1.0)
    )
    assert wide is not None and narrow is not None
    more = wide["final_state"] ** 2 - narrow["final_state"] ** 2
    value = np.exp(-n * 2.0**-7)
    assert np.sqrt(more) == pytest.approx(n * (e0 - 1.0) * unit * value, rel=1e-4)


def test_the_bias_of_steps_in_fp64_is_not_lost_in_fp64() -> None:
    """Of rank-one steps: in units of the format as in fp32.

    The draws themselves have fp64's own roundings beside those that are drawn.
    """
    case = case_of("gated_delta_rule")
    tensors = build(case).tensors
    op = OPS["gated_delta_rule"]
    found = {
        dtype: emulated_for(op, tensors, {}, FAST, dtype) for dtype in ("fp32", "fp64")
    }
    roots = {d: (x or {})["final_state"] for d, x in found.items()}
    share = np.sqrt((roots["fp64"] ** 2).mean() / (roots["fp32"] ** 2).mean())
    assert share * 2.0**29 == pytest.approx(1.0, rel=0.1)
