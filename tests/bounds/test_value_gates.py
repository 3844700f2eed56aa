"""Gradients of gates of keys and of values that a kernel sums in reverse."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scancheck.bounds.budget import budget_for
from scancheck.case import make_case
from scancheck.checks.oracle import Request, check_case, check_inputs
from scancheck.contract import Contract, ErrorModel, Structure
from scancheck.ops import OPS
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.recipes.build import build
from scancheck.recipes.inputs import cotangents
from scancheck.registry import resolve_target
from scancheck.verdict import Verdict

Array = NDArray[Any]
GLA = OPS["gla"]
B, T, H, K, V = 1, 60, 2, 5, 3


def drawn(seed: int, *, gk: float, gv: float) -> tuple[dict[str, Array], ...]:
    """fp32 tensors of one row, gates about so strong, and dense cotangents."""
    rng = np.random.default_rng(seed)
    shapes = {"q": (K,), "k": (K,), "v": (V,), "gk": (K,), "gv": (V,)}
    tensors = {n: rng.normal(size=(B, T, H, *s)) for n, s in shapes.items()}
    for name, size in (("gk", gk), ("gv", gv)):
        tensors[name] = -size * np.abs(tensors[name])
    tensors["initial_state"] = rng.normal(size=(B, H, K, V))
    bars = {
        "o": rng.normal(size=(B, T, H, V)),
        "final_state": rng.normal(size=(B, H, K, V)),
    }
    return tuple(
        {n: x.astype(np.float32).astype(float) for n, x in group.items()}
        for group in (tensors, bars)
    )


def kernel(
    tensors: dict[str, Array], bars: dict[str, Array], *, final: bool = True
) -> dict[str, Array]:
    """dgk and dgv as fused recurrent kernels form them, in fp32.

    Sums from the end of q dq - k dk and of o do - v dv, from the final state times its
    cotangent on; without that if not `final`.
    """
    x = {n: y[0].astype(np.float32) for n, y in (tensors | bars).items()}
    scale = np.float32(K**-0.5)
    q, k, v, bar = x["q"] * scale, x["k"], x["v"], x["o"]
    decay = np.exp(x["gk"])[..., None] * np.exp(x["gv"])[:, :, None]
    state, reads = x["initial_state"], []
    for t in range(T):
        state = decay[t] * state + k[t, :, :, None] * v[t, :, None]
        reads.append((state, (q[t, :, :, None] * state).sum(1)))
    adjoint = x["final_state"]
    sums = state * adjoint * np.float32(final)
    of_keys, of_values = sums.sum(2), sums.sum(1)
    found: dict[str, list[Array]] = {"gk": [], "gv": []}
    for t in reversed(range(T)):
        after, o = reads[t]
        adjoint = adjoint + q[t, :, :, None] * bar[t, :, None]
        dq = (after * bar[t, :, None]).sum(2)
        of_keys = of_keys + (q[t] * dq - k[t] * (adjoint * v[t, :, None]).sum(2))
        dv = (adjoint * k[t, :, :, None]).sum(1)
        of_values = of_values + (o * bar[t] - v[t] * dv)
        found["gk"].append(of_keys)
        found["gv"].append(of_values)
        adjoint = decay[t] * adjoint
    return {n: np.stack(rows[::-1])[None].astype(float) for n, rows in found.items()}


def worst(
    found: dict[str, Array], tensors: dict[str, Array], bars: dict[str, Array], how: str
) -> dict[str, float]:
    """The largest error over its budget, by gate."""
    contract = Contract(
        structure=Structure(kind="sequential"),
        exp=ErrorModel(e0=4.0, e1=0.0),
        gate_gradient=how,
    )
    want = solve(Fp64System(), GLA, tensors, {}, bars).gradients
    allowed = budget_for(GLA, tensors, {}, contract, "fp32", bars).gradients
    return {
        name: float(np.max(np.abs(x - want[name].value) / allowed[name].error))
        for name, x in found.items()
    }


@pytest.mark.parametrize(("gk", "gv"), [(0.01, 0.01), (0.5, 1e-3), (1e-4, 3.0)])
def test_sums_in_reverse_have_a_budget_on_both_sides(gk: float, gv: float) -> None:
    """Strong gates of either side too, where the direct form has far less."""
    tensors, bars = drawn(3, gk=gk, gv=gv)
    found = worst(kernel(tensors, bars), tensors, bars, "reverse_cumsum")
    assert all(1e-3 < ratio <= 1.0 for ratio in found.values()), found


def test_a_kernel_that_sums_value_gates_in_reverse_has_to_say_so() -> None:
    """At strong gates its errors are beyond the direct form's."""
    tensors, bars = drawn(3, gk=1.0, gv=3.0)
    found = worst(kernel(tensors, bars), tensors, bars, "direct")
    assert min(found.values()) > 10.0, found


def test_a_dropped_final_state_is_seen_in_both() -> None:
    """The first term of the sums is the final state's."""
    tensors, bars = drawn(4, gk=0.01, gv=0.01)
    wrong = kernel(tensors, bars, final=False)
    found = worst(wrong, tensors, bars, "reverse_cumsum")
    assert min(found.values()) > 100.0, found


def test_tiles_do_not_change_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums go on through the engine's tiles."""
    tensors, bars = drawn(5, gk=0.1, gv=0.1)
    contract = Contract(gate_gradient="reverse_cumsum")
    whole = budget_for(GLA, tensors, {}, contract, "fp32", bars).gradients
    monkeypatch.setattr("scancheck.oracles.engine.TILE_ENTRIES", B * H * K * V * 7)
    tiled = budget_for(GLA, tensors, {}, contract, "fp32", bars).gradients
    for name in ("gk", "gv"):
        assert np.allclose(whole[name].error, tiled[name].error, rtol=1e-12, atol=0.0)


def test_two_decays_underflow_twice() -> None:
    """(w S) z loses a bit below the normal range twice: of S, and of dz = G (w S).

    Fuzzing found the model of gla 1.2 budgets off where one loss was counted.
    """
    (model,) = resolve_target("model.gla.sequential.plain", None)
    case = make_case(
        "gla",
        {"B": 1, "H": 3, "K": 1, "T": 16383, "V": 1},
        recipe="subnormal_state",
        seed=51127,
        options={"chunk": 256, "gv": True, "initial_state": True},
    )
    assert model.contract is not None
    request = Request(contract=model.contract, runs=1, gradients=True)
    report = check_case(model, case, request, cotangent_kind="dense")
    assert report.verdict is Verdict.PASS
    assert report.gradient_metrics["gv"].ratio.max() > 0.25


def test_what_a_decayed_state_loses_is_multiplied_by_its_cotangent() -> None:
    """dz = G (w S) of a subnormal first state, exact itself, under a large G."""
    (model,) = resolve_target("model.gla.sequential.plain", None)
    sizes, options = {"B": 2, "H": 200, "K": 1, "T": 1, "V": 1}, {"gv": True}
    case = make_case(
        "gla",
        sizes,
        recipe="subnormal_state",
        seed=3,
        options=options | {"initial_state": True},
    )
    bars = {n: 16.0 * x for n, x in cotangents(case, "dense", 3).items()}
    assert model.contract is not None
    request = Request(contract=model.contract, runs=1, gradients=True)
    report = check_inputs(model, case, build(case), request, bars, "dense")
    assert report.verdict is Verdict.PASS
    assert report.gradient_metrics["gv"].ratio.max() > 0.25
