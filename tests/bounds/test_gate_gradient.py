"""Gate gradients by reverse cumulative sum: err <= E, and far above the direct form."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from machines.emulator import WIDE, Machine
from machines.log_chunks import running_sums
from machines.trial import LINEAR_SCAN, Data, allowances, exact, machine, ratios
from numpy.typing import NDArray

from scancheck.bounds.budget import Allowance, budget_for
from scancheck.contract import Contract, ErrorModel, Structure
from scancheck.formats import FORMATS, FP32, Format, round_array
from scancheck.ops import op_named
from scancheck.oracles.fp64 import solve_fp64

Array = NDArray[Any]
GATES = {
    "near one": lambda rng, shape: -(2.0 ** -rng.uniform(8, 24, shape)),
    "moderate": lambda rng, shape: -rng.uniform(0.05, 0.8, shape),
    "strong": lambda rng, shape: -rng.uniform(1.5, 2.5, shape),
    "growth": lambda rng, shape: rng.uniform(0, 1.0, shape),
}


def drawn(gates: str, fmt: Format, steps: int) -> tuple[Array, Data]:
    """Log gates of the format and the scan that they stand for."""
    rng = np.random.default_rng([2, steps])
    g = round_array(fmt, GATES[gates](rng, (steps, 4)))
    b, ybar = (round_array(fmt, rng.normal(size=g.shape)) for _ in range(2))
    s, last = (round_array(fmt, rng.normal(size=4)) for _ in range(2))
    return g, Data(a=np.exp(g.astype(WIDE)), b=b, s=s, ybar=ybar, last_bar=last)


def computed(m: Machine, g: Array, data: Data, *, tree: bool) -> Array:
    """dg of a sequential scan, [T, lanes]; `tree`: the reverse sum by doubling."""
    g, b, s, ybar, last = (
        np.asarray(x, WIDE if m.exact else float)
        for x in (g, data.b, data.s, data.ybar, data.last_bar)
    )
    w, states = m.exp(g), []
    for x, y in zip(w, b, strict=True):
        s = m.add(m.mul(x, s), y)
        states.append(s)
    adjoint, bar, after = np.empty_like(b), last, np.ones_like(last)
    for t in reversed(range(len(b))):
        bar = m.add(ybar[t], m.mul(after, bar))
        adjoint[t], after = bar, w[t]
    rows = m.add(m.mul(ybar, np.array(states)), -m.mul(adjoint, b))
    rows = np.concatenate((m.mul(last, states[-1])[None], rows[::-1]))
    return running_sums(m, rows, tree=tree)[1:][::-1]


def allowed(
    g: Array, data: Data, fmt: Format, form: str, exp: ErrorModel, ftz: str = "no"
) -> Allowance:
    """The allowance of dg under a sequential contract."""
    contract = Contract(
        compute=fmt.name, structure=Structure(kind="sequential"), ftz=ftz, exp=exp,
        gate_gradient=form,
    )  # fmt: skip
    tensors = {"g": g[None], "b": data.b[None], "initial_state": data.s[None]}
    budget = budget_for(LINEAR_SCAN, tensors, {}, contract, fmt.name, data.cotangents)
    return allowances(budget)["g"]


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("tree", [False, True])
def test_no_program_exceeds_its_budget(gates: str, tree: bool) -> None:
    """Nearest, flushed and adversarial roundings, in fp32 and bf16."""
    modes = ("nearest", "flush", "away", "random")
    for dtype, mode, steps in product(("fp32", "bf16"), modes, (1, 30)):
        fmt = FORMATS[dtype]
        g, data = drawn(gates, fmt, steps)
        m = machine(fmt, mode)
        fair = mode in ("nearest", "flush")
        exp = ErrorModel(e0=1.01) if fair else Contract().exp
        m.exp_error = (exp.e0, exp.e1)
        flush = "yes" if mode == "flush" else "no"
        e = allowed(g, data, fmt, "reverse_cumsum", exp, flush)
        want = exact(data)["a"] * data.a
        got = computed(m, g, data, tree=tree)
        assert np.max(ratios(got, want, e)) <= 1.0, (dtype, mode, steps)


def test_a_kernel_that_sums_in_reverse_has_to_say_so() -> None:
    """At strong gates its errors exceed the budget of the direct form ten times."""
    g, data = drawn("strong", FP32, 200)
    got = computed(Machine(fmt=FP32), g, data, tree=False)
    want = exact(data)["a"] * data.a
    exp = ErrorModel(e0=1.01)
    direct = allowed(g, data, FP32, "direct", exp)
    summed = allowed(g, data, FP32, "reverse_cumsum", exp)
    assert np.max(ratios(got, want, direct)) > 10.0
    assert 1e-3 < np.max(ratios(got, want, summed)) <= 1.0
    # The error of the first gates is that of the whole sequence.
    assert np.all(summed.error[0, 0] > 20.0 * direct.error[0, 0])


def test_tiles_do_not_change_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums go on through the engine's tiles."""
    g, data = drawn("moderate", FP32, 50)
    exp = ErrorModel(e0=1.01)
    whole = allowed(g, data, FP32, "reverse_cumsum", exp)
    monkeypatch.setattr("scancheck.oracles.engine.TILE_ENTRIES", 4 * 7)
    tiled = allowed(g, data, FP32, "reverse_cumsum", exp)
    assert np.allclose(whole.error, tiled.error, rtol=1e-12, atol=0.0)


def test_every_log_form_has_the_sum() -> None:
    """dg of a log form is bounded above its direct form, with the same outputs."""
    g, data = drawn("strong", FP32, 40)
    tensors = {"g": g[None], "b": data.b[None], "initial_state": data.s[None]}
    for form in ("diff", "segsum", "full"):
        where = Structure(kind="sequential")
        found = [
            allowances(
                budget_for(
                    LINEAR_SCAN, tensors, {},
                    Contract(structure=where, log=form, gate_gradient=how),
                    "fp32", data.cotangents,
                )
            )
            for how in ("direct", "reverse_cumsum")
        ]  # fmt: skip
        assert np.array_equal(found[0]["b"].error, found[1]["b"].error)
        assert np.all(found[0]["g"].error[0, 0] < found[1]["g"].error[0, 0])


def test_gates_of_keys_and_of_values_have_the_sum() -> None:
    """gla with both in fp32: dgk sums over lanes, dgv over keys, both in reverse."""
    gla, rng = op_named("gla"), np.random.default_rng(6)
    steps, keys, lanes = 80, 3, 2
    shapes = {"q": keys, "k": keys, "v": lanes, "gk": keys, "gv": lanes}
    x = {n: rng.normal(size=(steps, width)) for n, width in shapes.items()}
    x |= {n: -np.abs(x[n]) for n in ("gk", "gv")}
    bar = rng.normal(size=(steps, lanes))
    x, bar = {n: a.astype(np.float32) for n, a in x.items()}, bar.astype(np.float32)
    decay = np.exp(x["gk"])[:, :, None] * np.exp(x["gv"])[:, None]
    state, adjoint = np.zeros((2, keys, lanes), np.float32)
    read, written = np.empty((2, steps, keys, lanes), np.float32)
    reads = x["q"] * np.float32(keys**-0.5)
    for t in range(steps):
        state = decay[t] * state + x["k"][t][:, None] * x["v"][t]
        read[t] = reads[t][:, None] * bar[t] * state
    for t in reversed(range(steps)):
        adjoint = adjoint + reads[t][:, None] * bar[t]
        written[t] = x["k"][t][:, None] * x["v"][t] * adjoint
        adjoint = decay[t] * adjoint
    terms = read - written
    got = {"gk": terms.sum(2), "gv": terms.sum(1)}
    got = {n: np.cumsum(a[::-1], 0)[::-1] for n, a in got.items()}
    tensors = {n: a[None, :, None].astype(float) for n, a in x.items()}
    bars = {"o": bar[None, :, None].astype(float)}
    want = solve_fp64(gla, tensors, {}, bars).gradients
    worst = {}
    for form in ("direct", "reverse_cumsum"):
        claim = Contract(structure=Structure(kind="sequential"), gate_gradient=form)
        budget = budget_for(gla, tensors, {}, claim, "fp32", bars)
        off = [
            np.abs(got[n] - want[n].value[0, :, 0]) / budget.gradients[n].error[0, :, 0]
            for n in got
        ]
        worst[form] = [float(x.max()) for x in off]
    assert max(worst["reverse_cumsum"]) <= 1.0
    assert min(worst["direct"]) > 10.0
