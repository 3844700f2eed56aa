"""Gate gradients as a chunk's whole sum less a running sum from its start."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scancheck.bounds.budget import budget_for
from scancheck.contract import Contract, ErrorModel, Structure, parse_contract
from scancheck.errors import CaseInvalid
from scancheck.ops import OPS
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System

Array = NDArray[Any]
T, H, K, V, CHUNK = 45, 2, 5, 3, 16
GATES = {"gla": "gk", "rwkv6": "w"}
SINGLE = np.float32


def drawn(op: str, *, final: bool) -> tuple[dict[str, Array], dict[str, Array]]:
    """fp32 tensors and cotangents, large at first; of the final state zero or not."""
    rng = np.random.default_rng(6)
    gate, read = GATES[op], "q" if op == "gla" else "r"
    shapes = {read: (K,), "k": (K,), "v": (V,), gate: (K,)}
    tensors = {n: rng.normal(size=(1, T, H, *s)) for n, s in shapes.items()}
    tensors[gate] = -0.1 * np.abs(tensors[gate])
    tensors["initial_state"] = rng.normal(size=(1, H, K, V))
    if op == "rwkv6":
        tensors["u"] = rng.normal(size=(H, K))
    # Later terms are small: what earlier ones leave is seen.
    fading = 10.0 ** -(np.arange(T) / 5.0)[:, None, None]
    bars = {"o": fading * rng.normal(size=(1, T, H, V))}
    bars["final_state"] = float(final) * 1e-8 * rng.normal(size=(1, H, K, V))
    return tuple(  # type: ignore[return-value]
        {n: x.astype(SINGLE).astype(float) for n, x in group.items()}
        for group in (tensors, bars)
    )


def kernel(op: str, tensors: dict[str, Array], bars: dict[str, Array]) -> Array:
    """The gate's gradient in fp32 as chunks of gated linear attention form it.

    x_t = q_t dq_t - k_t dk_t; of a chunk x - (running sum) + (sum), what comes after,
    and, where the state is read before the update, less the token's own q dq.
    """
    x = {n: y[0].astype(SINGLE) for n, y in (tensors | bars).items() if n != "u"}
    late = op == "rwkv6"
    q = x["r" if late else "q"] * SINGLE(K**-0.5)
    k, v, bar, decay = x["k"], x["v"], x["o"], np.exp(x[GATES[op]])[..., None]
    state, adjoint = x["initial_state"], x["final_state"]
    own = np.empty((T, H, K), SINGLE)
    terms = np.empty((T, H, K), SINGLE)
    for t in range(T):
        before = state
        state = decay[t] * state + k[t, :, :, None] * v[t, :, None]
        own[t] = q[t] * ((before if late else state) * bar[t, :, None]).sum(2)
    after = (state * adjoint).sum(2)
    for t in reversed(range(T)):
        here = q[t, :, :, None] * bar[t, :, None]
        if not late:
            adjoint = adjoint + here
        terms[t] = own[t] - k[t] * (adjoint * v[t, :, None]).sum(2)
        adjoint = decay[t] * adjoint + (here if late else SINGLE(0))
    found = np.empty_like(terms)
    for first in reversed(range(0, T, CHUNK)):
        part = terms[first : first + CHUNK]
        whole = part.sum(0)
        found[first : first + CHUNK] = part - np.cumsum(part, 0) + whole + after
        after = after + whole
    return (found - own if late else found)[None].astype(float)


def ratio(op: str, how: str, *, final: bool, log: str = "none") -> Array:
    """Errors over their budget, [T]."""
    tensors, bars = drawn(op, final=final)
    contract = Contract(
        structure=Structure(kind="chunk", chunk=CHUNK),
        exp=ErrorModel(e0=4.0, e1=0.0),
        gate_gradient=how,
        log=log,
    )
    gate = GATES[op]
    want = solve(Fp64System(), OPS[op], tensors, {}, bars).gradients[gate].value
    budget = budget_for(OPS[op], tensors, {}, contract, "fp32", bars).gradients[gate]
    error = np.abs(kernel(op, tensors, bars) - want)
    worst: Array = (error / budget.error).max((0, 2, 3))
    return worst


@pytest.mark.parametrize("log", ["none", "diff"])
@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("op", GATES)
def test_chunk_sums_stay_within_their_budget(op: str, final: bool, log: str) -> None:
    """Of every token, the last of a chunk and of all included."""
    found = ratio(op, "chunk_sums", final=final, log=log)
    assert found.max() <= 1.0
    assert found[[CHUNK - 1, T - 1]].max() > 1e-4


def test_a_kernel_that_sums_chunks_has_to_say_so() -> None:
    """The last token of rwkv6 has a gradient of zero, which reverse sums find."""
    found = ratio("rwkv6", "reverse_cumsum", final=False)
    assert found[T - 1] > 100.0
    assert found[: CHUNK // 2].max() <= 1.0


def test_sums_of_the_whole_length_are_none_of_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Running sums from the first token on leave far more at the end."""
    monkeypatch.setitem(globals(), "CHUNK", T)
    tensors, bars = drawn("gla", final=False)
    got = kernel("gla", tensors, bars)
    monkeypatch.undo()
    contract = Contract(
        structure=Structure(kind="chunk", chunk=CHUNK), gate_gradient="chunk_sums"
    )
    want = solve(Fp64System(), OPS["gla"], tensors, {}, bars).gradients["gk"].value
    budget = budget_for(OPS["gla"], tensors, {}, contract, "fp32", bars)
    allowed = budget.gradients["gk"].error
    assert (np.abs(got - want) / allowed)[0, -1].max() > 5.0


@pytest.mark.parametrize("op", GATES)
def test_tiles_do_not_change_the_bound(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles that end inside chunks too."""
    tensors, bars = drawn(op, final=True)
    contract = Contract(
        structure=Structure(kind="chunk", chunk=CHUNK), gate_gradient="chunk_sums"
    )
    gate = GATES[op]
    whole = budget_for(OPS[op], tensors, {}, contract, "fp32", bars).gradients[gate]
    monkeypatch.setattr("scancheck.oracles.engine.TILE_ENTRIES", H * K * V * 7)
    tiled = budget_for(OPS[op], tensors, {}, contract, "fp32", bars).gradients[gate]
    assert np.allclose(whole.error, tiled.error, rtol=1e-12, atol=0.0)


def test_chunk_sums_need_chunks() -> None:
    """The message names both sides."""
    with pytest.raises(CaseInvalid, match=r"gate_gradient=chunk_sums.*structure=seq"):
        parse_contract("structure=sequential,gate_gradient=chunk_sums")
