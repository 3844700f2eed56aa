"""Chunks in log space: nothing exceeds E, and E is the formula of numerics 2.5."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from machines.emulator import Machine
from machines.log_chunks import gradients, log_chunks
from machines.trial import LINEAR_SCAN, allowances, exact, machine, ratios
from machines.trial import Data as Linear
from numpy.typing import NDArray

from scancheck.bounds.budget import Budget, budget_for
from scancheck.contract import Contract, ErrorModel, Structure, parse_contract
from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS, FP32, Format, round_array

FloatArray = NDArray[np.float64]
WIDE = np.longdouble
Draw = Callable[[np.random.Generator, tuple[int, int]], FloatArray]

GATES: dict[str, Draw] = {
    "strong": lambda rng, shape: -rng.uniform(2, 6, shape),
    "slow": lambda rng, shape: -(2.0 ** -rng.uniform(4, 14, shape)),
    "mixed": lambda rng, shape: -np.exp(rng.normal(-2, 2.5, shape)),
    "positive": lambda rng, shape: rng.normal(0, 0.3, shape),
    "one strong": lambda rng, shape: np.where(
        rng.random(shape) < 0.05, -60.0, -1e-3 * rng.random(shape)
    ),
    "regrow": lambda rng, shape: (
        np.where(np.arange(shape[0])[:, None] % 16 < 8, -9.0, 9.0)
        * rng.uniform(0.9, 1, shape)
    ),
    "reset": lambda rng, shape: np.where(rng.random(shape) < 0.1, -1e4, -0.1),
}


def drawn(name: str, fmt: Format, steps: int, lanes: int) -> tuple[FloatArray, Linear]:
    """Log gates, and the scan that they stand for."""
    rng = np.random.default_rng(4)
    shape = (steps, lanes)
    g = round_array(fmt, GATES[name](rng, shape))
    b, ybar = (round_array(fmt, rng.normal(size=shape)) for _ in range(2))
    s, last_bar = (round_array(fmt, rng.normal(size=lanes)) for _ in range(2))
    decay = np.exp(g.astype(WIDE))
    return g, Linear(a=decay, b=b, s=s, ybar=ybar, last_bar=last_bar)


def structure(chunk: int, inner: str) -> Structure:
    """Chunks, or one chunk of the whole length for 0."""
    if chunk:
        return Structure(kind="chunk", chunk=chunk, inner=inner)
    return Structure(kind=inner)


def bounded(g: FloatArray, data: Linear, contract: Contract, fmt: Format) -> Budget:
    """The budget of the scan given by log gates."""
    tensors = {"g": g[None], "b": data.b[None], "initial_state": data.s[None]}
    return budget_for(
        LINEAR_SCAN, tensors, {}, contract, fmt.name, data.cotangents, underflow=True
    )


def contract_for(
    fmt: Format, where: Structure, ftz: str = "no", e0: float = 1.01, e1: float = 0.0
) -> Contract:
    """log=diff with an error model of exp."""
    return Contract(
        compute=fmt.name, structure=where, ftz=ftz, log="diff", range="log",
        exp=ErrorModel(e0=e0, e1=e1),
    )  # fmt: skip


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("inner", ["sequential", "tree"])
@pytest.mark.parametrize("chunk", [1, 16, 64])
def test_no_program_exceeds_its_budget(name: str, inner: str, chunk: int) -> None:
    """States and explicit gradients: nearest, flushed and adversarial, err <= E."""
    for dtype in ("fp32", "bf16"):
        fmt = FORMATS[dtype]
        g, data = drawn(name, fmt, 70 if chunk == 64 else 35, 6)
        want = exact(data)
        want["g"] = want.pop("a") * np.exp(g.astype(WIDE))
        tree = inner == "tree"
        modes = [("nearest", 1.01, 0.0), ("away", 4.0, 2.35)]
        if chunk == 16:
            modes += [("flush", 1.01, 0.0), ("random", 4.0, 2.35)]
        for mode, e0, e1 in modes:
            m = machine(fmt, mode)
            m.exp_error = (e0, e1)
            ftz = "yes" if mode == "flush" else "no"
            where = structure(chunk, inner)
            allowed = allowances(
                bounded(g, data, contract_for(fmt, where, ftz, e0, e1), fmt)
            )
            log, x, s = (np.asarray(p, WIDE if m.exact else float)
                         for p in (g, data.b, data.s))  # fmt: skip
            bars = (data.ybar, data.last_bar)
            with np.errstate(all="ignore"):
                got = {"h": log_chunks(m, log, x, s, chunk=chunk, tree=tree)}
                if chunk == 16:
                    got |= gradients(m, log, x, s, bars, chunk=chunk, tree=tree)
            for tensor, values in got.items():
                ratio = ratios(values, want[tensor], allowed[tensor])
                assert np.max(ratio) <= 1.0, (dtype, mode, tensor)


@pytest.mark.parametrize("name", ["strong", "mixed", "regrow"])
@pytest.mark.parametrize("inner", ["sequential", "tree"])
def test_long_chunks_and_no_chunks_fit_their_budget(name: str, inner: str) -> None:
    """C = 256, and one chunk where the structure names none; rounded to nearest."""
    g, data = drawn(name, FP32, 256, 4)
    m = Machine(fmt=FP32, exp_error=(1.01, 0.0))
    got = log_chunks(m, g, data.b, data.s, chunk=256, tree=inner == "tree")
    for where in (structure(256, inner), structure(0, inner), Structure()):
        allowed = bounded(g, data, contract_for(FP32, where), FP32).outputs["h"]
        assert np.max(ratios(got, exact(data)["h"], allowed)) <= 1.0


@pytest.mark.parametrize("name", ["strong", "mixed", "one strong", "slow"])
@pytest.mark.parametrize("inner", ["sequential", "tree"])
def test_first_order_is_the_formula(name: str, inner: str) -> None:
    """u (K + X) + e1 X + (e0 + (t + 1) u) M + carry, or u D (G M + V) for trees."""
    g, data = drawn(name, FP32, 16, 5)
    e0, e1, u = 4.0, 2.35, FP32.unit_roundoff
    contract = contract_for(FP32, structure(16, inner), "no", e0, e1)
    tensors = {"g": g[None], "b": data.b[None], "initial_state": data.s[None]}
    got = budget_for(LINEAR_SCAN, tensors, {}, contract, "fp32", underflow=False)
    c = np.cumsum(g, 0)
    total = np.cumsum(np.abs(g), 0)
    first = np.zeros_like(g)
    for t in range(16):
        depth = min(t, 2 * int(np.ceil(np.log2(t + 1))))
        for j in range(t + 1):
            gap = np.abs(c[t] - c[j])
            # c_0 is a gate as it is given.
            theta = np.sum(np.abs(c[max(j, 1) : t + 1]), 0)
            if inner == "tree" and j < t:
                early = min(j, 2 * int(np.ceil(np.log2(j + 1))))
                theta = depth * total[t] + early * total[j]
            own = theta * (j < t) + gap + e0 + e1 * gap + t + 2
            first[t] += np.exp(c[t] - c[j]) * np.abs(data.b[j]) * own
        theta = depth * total[t] if inner == "tree" else np.sum(np.abs(c[1 : t + 1]), 0)
        own = theta + e0 + e1 * np.abs(c[t]) + t + 2
        first[t] += np.exp(c[t]) * np.abs(data.s) * own
    ratio = got.outputs["h"].error[0] / (u * first)
    assert np.all(np.abs(ratio - 1.0) < 2e-3)
    assert np.all(ratio > 1.0 - 1e-9)


def test_running_sums_rounded_where_they_are_read() -> None:
    """c_t of torch.cumsum, which adds in fp64 on a CPU, declared as formed in order.

    Two neighbours are then rounded apart, by more than one step of an fp32 sum loses.
    """
    random = np.random.default_rng(0)
    g = random.uniform(-66.0, -62.0, (64, 512)).astype(np.float32)
    b = np.where(np.arange(64)[:, None] % 2, 0.0, -1.0) * np.ones_like(g)
    where = "structure=chunk(64,sequential,sequential),log=diff"
    tensors = {"g": g[None].astype(float), "b": b[None].astype(float)}
    allowed = budget_for(LINEAR_SCAN, tensors, {}, parse_contract(where), "fp32")
    c = torch.from_numpy(g).cumsum(0)
    h = torch.exp(c[1::2] - c[:-1:2]) * torch.from_numpy(b[::2]).float()
    want = np.exp(g[1::2].astype(float)) * b[::2]
    ratio = np.abs(h.double().numpy() - want) / allowed.outputs["h"].error[0, 1::2]
    assert 0.5 < np.max(ratio) <= 1.0


def test_rounding_to_nearest_uses_a_fair_part_of_the_budget() -> None:
    """Ordinary rounding reaches 0.1 of E at strong gates, an adversary 0.9."""
    g, data = drawn("one strong", FP32, 128, 64)
    contract = contract_for(FP32, structure(64, "sequential"))
    allowed = bounded(g, data, contract, FP32).outputs["h"]
    want = exact(data)["h"]
    got = log_chunks(Machine(fmt=FP32), g, data.b, data.s, chunk=64)
    assert np.max(ratios(got, want, allowed)[8:]) > 0.1
    wide = [np.asarray(x, WIDE) for x in (g, data.b, data.s)]
    m = Machine(fmt=FP32, direction="away", exp_error=(1.01, 0.0))
    got = log_chunks(m, *wide, chunk=64)
    assert np.max(ratios(got, want, allowed)[8:]) > 0.9


def test_a_budget_without_the_sums_is_exceeded() -> None:
    """A kernel in log space does not fit the budget of products of decays."""
    g, data = drawn("one strong", FP32, 128, 16)
    where = structure(64, "sequential")
    contract = Contract(structure=where, exp=ErrorModel(e0=1.01), ftz="no")
    allowed = bounded(g, data, contract, FP32).outputs["h"]
    got = log_chunks(Machine(fmt=FP32), g, data.b, data.s, chunk=64)
    assert np.max(ratios(got, exact(data)["h"], allowed)) > 1.0


def test_a_tree_of_sums_does_not_fit_the_budget_of_a_sequential_one() -> None:
    """Roundings of a tree do not cancel in differences: strong gates show it."""
    g, data = drawn("strong", FP32, 128, 64)
    contract = contract_for(FP32, structure(64, "sequential"))
    allowed = bounded(g, data, contract, FP32).outputs["h"]
    got = log_chunks(Machine(fmt=FP32), g, data.b, data.s, chunk=64, tree=True)
    assert np.max(ratios(got, exact(data)["h"], allowed)) > 1.0


def test_the_error_grows_with_the_chunk() -> None:
    """At strong gates E grows with the chunk: C = 16, 64, 256 (numerics 0, item 6)."""
    g, data = drawn("strong", FP32, 256, 4)
    errors = [
        bounded(g, data, contract_for(FP32, structure(c, "sequential")), FP32)
        .outputs["h"].error.max()
        for c in (16, 64, 256)
    ]  # fmt: skip
    assert 2.0 * errors[0] < errors[1] < 0.5 * errors[2]


def test_a_gate_of_minus_infinity_is_predicted_as_nan() -> None:
    """-inf - (-inf): every element from that token on, and none before."""
    g, data = drawn("slow", FP32, 20, 3)
    g[7, 1] = -np.inf
    allowed = bounded(g, data, contract_for(FP32, structure(8, "tree")), FP32)
    mask = allowed.outputs["h"].overflows[0]
    assert mask[7:, 1].all()
    assert mask.sum() == 13
    with np.errstate(all="ignore"):
        got = log_chunks(Machine(fmt=FP32), g, data.b, data.s, chunk=8, tree=True)
    assert np.isnan(got[7:, 1]).all()


def test_an_exponential_beyond_the_range_is_predicted() -> None:
    """exp(c_t - c_j) overflows where gates are positive, though the term is small."""
    g = np.full((12, 1), 10.0)
    b = np.full((12, 1), 1e-30)
    zero = np.zeros(1)
    data = Linear(a=np.exp(g), b=b, s=zero, ybar=b, last_bar=zero)
    allowed = bounded(g, data, contract_for(FP32, structure(12, "tree")), FP32)
    with np.errstate(all="ignore"):
        got = log_chunks(Machine(fmt=FP32), g, b, zero, chunk=12)
    assert np.array_equal(allowed.outputs["h"].overflows[0], ~np.isfinite(got))
    assert not np.isfinite(got[-1]).any()


def test_tiles_do_not_change_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that lie across the engine's tiles give the same budget."""
    g, data = drawn("mixed", FP32, 50, 4)
    contract = contract_for(FP32, structure(16, "tree"))
    whole = bounded(g, data, contract, FP32)
    monkeypatch.setattr("scancheck.oracles.engine.TILE_ENTRIES", 4 * 7)
    tiled = bounded(g, data, contract, FP32)
    for name, allowed in allowances(whole).items():
        assert np.array_equal(allowed.error, allowances(tiled)[name].error), name


def test_decays_without_logs_are_refused() -> None:
    """A case that gives the decay itself has no log gates: one clear message."""
    _, data = drawn("slow", FP32, 4, 2)
    contract = contract_for(FP32, structure(2, "tree"))
    with pytest.raises(CaseInvalid, match="log gates"):
        budget_for(LINEAR_SCAN, data.tensors, {}, contract, "fp32")
