"""Judging on the card in one pass: the sums of what `measure` finds elementwise."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from scancheck.bounds.budget import budget_for
from scancheck.bounds.moments import moments_for, rho
from scancheck.contract import Contract, Structure
from scancheck.errors import CaseInvalid
from scancheck.metrics import TensorMetrics, measure
from scancheck.ops.linear_scan import LINEAR_SCAN
from scancheck.oracles import cuda_card, ladder
from scancheck.oracles.ladder import certify
from scancheck.screen import Screened, can_screen, screen

FloatArray = NDArray[np.float64]
LAMBDA = 5.0
SEQUENTIAL = Structure(kind="sequential")
CONTRACTS = {
    "any order": Contract(),
    "sequential": Contract(structure=SEQUENTIAL),
    "sequential fma": Contract(structure=SEQUENTIAL, fma="yes"),
    "chunks": Contract(structure=Structure(kind="chunk", chunk=8)),
    "tree": Contract(structure=Structure(kind="tree")),
    "kahan": Contract(comp="kahan"),
    "compensated": Contract(structure=SEQUENTIAL, comp="full"),
    "flushing": Contract(ftz="yes"),
    "short state": Contract(state="bf16", state_every=4, structure=SEQUENTIAL),
    "casts": Contract(casts=(("decay", "bf16"), ("drive", "fp16"))),
}


@dataclass(frozen=True)
class Data:
    """A case of linear_scan and what a kernel returned."""

    tensors: dict[str, FloatArray]
    got: dict[str, FloatArray]


def data(seed: int, kind: str, stored: type[np.floating[Any]] = np.float32) -> Data:
    """Plain recurrence in the stored format, with some elements spoilt."""
    rng = np.random.default_rng(seed)
    B, T, D = 2, int(rng.integers(1, 30)), int(rng.integers(1, 9))
    a = rng.uniform(-1, 1.05, (B, T, D)).astype(stored)
    b = rng.normal(size=(B, T, D)).astype(stored)
    s = rng.normal(size=(B, D)).astype(stored)
    if kind == "subnormal":
        b, s = b * stored(2.0**-135), s * stored(2.0**-135)
    if kind == "overflowing":
        a, b = np.full_like(a, 1.5), b * stored(1e37)
    state, h = s.copy(), np.empty_like(b)
    with np.errstate(all="ignore"):
        for t in range(T):
            state = a[:, t] * state + b[:, t]
            h[:, t] = state
    for value in (np.nan, np.inf, -np.inf, 0.0, np.finfo(stored).max):
        if rng.random() < 0.3:
            h[rng.integers(B), rng.integers(T), rng.integers(D)] = value
    spoilt = rng.random(h.shape) < 0.05
    h[spoilt] *= stored(1 + 2.0**-20)
    wide = {"a": a, "b": b, "initial_state": s}
    got = {"h": h, "final_state": state}
    return Data(
        {n: x.astype(np.float64) for n, x in wide.items()},
        {n: x.astype(np.float64) for n, x in got.items()},
    )


def in_full(
    case: Data, contract: Contract, dtype: str
) -> tuple[dict[str, TensorMetrics], dict[str, FloatArray] | None]:
    """Metrics of both outputs from the fp64 rung alone, and sqrt(v)."""
    op, tensors = LINEAR_SCAN, case.tensors
    budget = budget_for(op, tensors, {}, contract, dtype)
    allowance = {n: a.error for n, a in budget.outputs.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ladder, "RUNGS", ())
        truth = certify(op, tensors, {}, None, allowance)
    found = {
        n: measure(n, x, truth.outputs[n], budget.outputs[n])
        for n, x in case.got.items()
    }
    return found, moments_for(op, tensors, {}, contract, dtype)


def assert_same(case: Data, contract: Contract, dtype: str) -> None:
    """The screening has the sums of the full metrics, of both outputs."""
    metrics, moments = in_full(case, contract, dtype)
    bare = budget_for(LINEAR_SCAN, case.tensors, {}, contract, dtype, underflow=False)
    found = screen(case.tensors, case.got, contract, dtype, lambda_factor=LAMBDA)
    assert found.keys() == metrics.keys()
    for name, sums in found.items():
        root = None if moments is None else moments[name]
        assert_same_sums(metrics[name], root, sums)
        full = metrics[name]
        with np.errstate(over="ignore"):
            swamped = full.allowance > 2.0 * bare.outputs[name].error
        hidden = full.vacuous & (full.error > 0.0)
        assert (hidden & swamped).sum() <= sums.lost <= hidden.sum()


def assert_same_sums(
    full: TensorMetrics, root: FloatArray | None, sums: Screened
) -> None:
    """One tensor."""
    assert sums.name == full.name
    assert sums.elements == full.ratio.size
    assert sums.worst == full.ratio.max()
    assert sums.worst_index is not None
    assert full.ratio[sums.worst_index] == sums.worst
    assert sums.beyond == (full.ratio > 1.0).sum()
    for name in ("wrong_kind", "nonfinite", "excused", "uncertified", "overflowing"):
        assert getattr(sums, name) == getattr(full, name).sum(), name
    assert sums.vacuous == (full.vacuous & ~full.wrong).sum()
    assert (sums.first_wrong is None) == (not full.wrong.any())
    if sums.first_wrong is not None:
        assert full.wrong[sums.first_wrong]
        if full.wrong.ndim == 3:
            assert not full.wrong[:, : sums.first_wrong[1]].any()
    if root is None:
        assert sums.rho is None
        return
    inside = ~full.overflowing
    error, likely = full.error[inside], root[inside]
    assert sums.improbable == (error > LAMBDA * likely).sum()
    if np.isfinite(error).all() and likely.size and likely.min() > 1e-140:
        assert sums.rho == pytest.approx(rho(error, likely), rel=1e-12)


KINDS = ("plain", "subnormal", "overflowing")


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_those_of_the_full_metrics(
    contract: Contract, kind: str, card: str
) -> None:
    """Every contract, within range and at both of its ends."""
    for seed in range(4):
        assert_same(data(seed, kind), contract, "fp32")


def test_a_right_kernel_is_a_plain_pass(card: str) -> None:
    """Within range nothing is left to look at, vacuous or not."""
    rng = np.random.default_rng(11)
    a = rng.uniform(-1, 1, (2, 400, 16)).astype(np.float32)
    b = rng.normal(size=a.shape).astype(np.float32)
    state, h = np.zeros((2, 16), np.float32), np.empty_like(b)
    for t in range(a.shape[1]):
        state = a[:, t] * state + b[:, t]
        h[:, t] = state
    found = screen(
        {"a": a, "b": b},
        {"h": h, "final_state": state},
        Contract(structure=SEQUENTIAL),
        "fp32",
        lambda_factor=8.0,
    )
    assert found["h"].is_plain_pass
    assert 0.0 < found["h"].worst <= 1.0
    h[1, 200, 3] *= np.float32(1.001)
    wrong = screen(
        {"a": a, "b": b},
        {"h": h, "final_state": state},
        Contract(structure=SEQUENTIAL),
        "fp32",
    )["h"]
    assert not wrong.is_plain_pass
    assert wrong.first_wrong == wrong.worst_index == (1, 200, 3)


def test_subnormal_states_on_the_card_are_read_as_they_are(card: str) -> None:
    """As they are from the host: CuPy's own conversions make zeros of them."""
    case, contract = data(3, "subnormal"), Contract(structure=SEQUENTIAL)
    short = [
        {name: x.astype(np.float32) for name, x in group.items()}
        for group in (case.tensors, case.got)
    ]
    assert (np.abs(short[1]["final_state"]) < 2.0**-126).any()
    xp = cuda_card.arrays()
    there = [{n: xp.asarray(x) for n, x in group.items()} for group in short]
    here = screen(*short, contract, "fp32")
    assert screen(*there, contract, "fp32") == here
    assert here["final_state"].worst <= 1.0


def test_fp64_is_judged_in_fp64(card: str) -> None:
    """Cases of fp64, where the reference is no closer than the budget."""
    for seed in range(3):
        case = data(seed, "plain", np.float64)
        assert_same(case, Contract(structure=SEQUENTIAL), "fp64")


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_short_formats_are_stored_once(dtype: str, card: str) -> None:
    """The budget takes in the rounding into the tensor's own format."""
    assert_same(data(5, "plain"), Contract(), dtype)
    assert_same(data(6, "overflowing"), Contract(structure=SEQUENTIAL), dtype)


@given(st.integers(0, 2**32 - 1), st.sampled_from(KINDS))
def test_any_case_has_the_sums_of_its_metrics(
    host_card: Any, seed: int, kind: str
) -> None:
    """Random lengths, widths and spoilt elements."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("arrays", "device_index", "launch"):
            patch.setattr(cuda_card, name, getattr(host_card, name))
        contract = CONTRACTS["sequential" if seed % 2 else "any order"]
        assert_same(data(seed, kind), contract, "fp32")


def test_other_forms_are_refused() -> None:
    """Log gates, named orders and short arithmetic have no fused judgement."""
    assert not can_screen(frozenset({"g", "b"}), Contract(), "fp32")
    assert not can_screen(frozenset({"a", "b"}), Contract(compute="bf16"), "bf16")
    assert can_screen(frozenset({"a", "b"}), Contract(), "bf16")
    with pytest.raises(CaseInvalid, match="expected linear_scan with decays a"):
        screen({"g": np.zeros((1, 1, 1))}, {}, Contract(), "fp32")
