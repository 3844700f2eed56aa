"""Reverse mode is inside every log form in chunks: the forward's decays, transposed."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
import torch
from machines import user_log_scans
from machines.emulator import WIDE, Machine
from machines.log_forms import Program
from machines.log_reverse import reverse_chunks
from machines.trial import LINEAR_SCAN, Data, allowances, exact, machine, ratios
from numpy.typing import NDArray

from scancheck.bounds import log_reverse_chunks as transposed
from scancheck.bounds.budget import Allowance, Budget, budget_for
from scancheck.contract import Contract, ErrorModel, Structure
from scancheck.formats import FORMATS, FP32, Format, round_array

FloatArray = NDArray[np.float64]

FORMS = ("diff", "segsum", "factored", "ratio", "renorm")
GATES = {
    "near one": lambda rng, shape: -(2.0 ** -rng.uniform(8, 24, shape)),
    "moderate": lambda rng, shape: -rng.uniform(0.05, 0.8, shape),
    "strong": lambda rng, shape: -rng.uniform(2, 6, shape),
    "mixed": lambda rng, shape: -np.exp(rng.normal(-2, 2.5, shape)),
    # c is large from the first step of a chunk of 8 on: a count from the end is blind.
    "strong at first": lambda rng, shape: np.where(
        np.arange(shape[0])[:, None] % 8 == 0, -70.0, -rng.uniform(0.01, 0.1, shape)
    ),
    "strong at last": lambda rng, shape: np.where(
        np.arange(shape[0])[:, None] % 8 == 7, -70.0, np.full(shape, -0.05)
    ),
    "edge of fp32": lambda rng, shape: -rng.uniform(9.8, 12.2, shape),
    "regrow": lambda rng, shape: (
        np.where(np.arange(shape[0])[:, None] % 16 < 8, -9.0, 9.0)
        * rng.uniform(0.9, 1, shape)
    ),
    "growth": lambda rng, shape: rng.uniform(0, 2.5, shape),
    "reset": lambda rng, shape: np.where(rng.random(shape) < 0.1, -1e4, -0.1),
    "closed": lambda rng, shape: np.where(rng.random(shape) < 0.05, -np.inf, -0.1),
}
BARS = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "wide": lambda rng, shape: (
        rng.choice([-1.0, 1.0], shape) * np.exp(rng.normal(0, 5, shape))
    ),
    "subnormal": lambda rng, shape: rng.normal(size=shape) * 2.0**-130,
}


def drawn(g: FloatArray, bars: str, fmt: Format) -> tuple[FloatArray, Data]:
    """Log gates in the format, and the scan that they stand for."""
    rng = np.random.default_rng([7, len(g)])
    g = round_array(fmt, g)
    b, ybar = (round_array(fmt, BARS[bars](rng, g.shape)) for _ in range(2))
    s, last = (round_array(fmt, BARS[bars](rng, g[0].shape)) for _ in range(2))
    with np.errstate(under="ignore"):
        decay = np.exp(g.astype(WIDE))
    return g, Data(a=decay, b=b, s=s, ybar=ybar, last_bar=last)


def gates(name: str, steps: int) -> FloatArray:
    """Gates [steps, 3] of one kind."""
    g: FloatArray = GATES[name](np.random.default_rng([8, steps]), (steps, 3))
    return g


def contract_for(p: Program, fmt: Format, mode: str) -> Contract:
    """The program's contract; adversaries get the default error models."""
    fair = ErrorModel(e0=1.01) if mode in ("nearest", "flush") else Contract().exp
    order = "tree" if p.tree else "sequential"
    return Contract(
        compute=fmt.name, log=p.form, range="log", exp=fair,
        structure=Structure(kind="chunk", chunk=p.chunk, inner=order),
        state="compute" if p.keep is None else p.keep.name,
        state_every=1 if p.keep is None else p.chunk,
        ftz="yes" if mode == "flush" else "no",
    )  # fmt: skip


def bounded(g: FloatArray, data: Data, contract: Contract, fmt: Format) -> Budget:
    """The budget of the scan given by log gates."""
    tensors = {"g": g[None], "b": data.b[None], "initial_state": data.s[None]}
    return budget_for(LINEAR_SCAN, tensors, {}, contract, fmt.name, data.cotangents)


def computed(
    m: Machine, p: Program, g: FloatArray, data: Data
) -> tuple[FloatArray, FloatArray]:
    """G and the initial state's cotangent by the program on the machine."""
    log, ybar, last = (
        np.asarray(v, WIDE if m.exact else float) for v in (g, data.ybar, data.last_bar)
    )
    with np.errstate(all="ignore"):
        return reverse_chunks(m, p, log, m.exp(log), (ybar, last))


def tried(
    p: Program, g: FloatArray, data: Data, fmt: Format, mode: str
) -> Iterator[tuple[str, FloatArray, FloatArray, Allowance]]:
    """Name, computed and exact values and allowance of the two cotangents."""
    m, contract = machine(fmt, mode), contract_for(p, fmt, mode)
    m.exp_error = (contract.exp.e0, contract.exp.e1)
    allowed = allowances(bounded(g, data, contract, fmt))
    with np.errstate(all="ignore"):
        want = exact(data)
    names = ("b", "initial_state")
    for name, got in zip(names, computed(m, p, g, data), strict=True):
        yield name, got, want[name], allowed[name]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", GATES)
def test_no_program_exceeds_its_budget(form: str, kind: str) -> None:
    """Nearest, flushed and adversarial, last chunk short: err <= E, or predicted."""
    modes = ("nearest", "flush", "away", "random")
    for dtype, tree, mode in product(("fp32", "bf16"), (False, True), modes):
        fmt, p = FORMATS[dtype], Program(form=form, chunk=8, tree=tree)
        ranged = mode in ("nearest", "flush")
        for bars in ("normal", "subnormal") if ranged else ("wide",):
            g, data = drawn(gates(kind, 21), bars, fmt)
            for tensor, got, want, allowed in tried(p, g, data, fmt, mode):
                ratio = np.max(ratios(got, want, allowed))
                assert ratio <= 1.0, (dtype, tree, mode, bars, tensor)


@pytest.mark.parametrize("form", FORMS)
def test_a_cotangent_kept_in_bf16_fits_its_budget(form: str) -> None:
    """The state's cotangent is rounded where the state is: at the chunks' edges."""
    p = Program(form=form, chunk=8, keep=FORMATS["bf16"])
    for mode, kind in product(("nearest", "away"), ("near one", "moderate")):
        g, data = drawn(gates(kind, 37), "normal", FP32)
        for tensor, got, want, allowed in tried(p, g, data, FP32, mode):
            assert np.max(ratios(got, want, allowed)) <= 1.0, (mode, kind, tensor)


def nothing(*_: object) -> None:
    """Leaves the bound of reverse mode at zero."""


# First gate of the length, all later ones slight, and a chunk; by how much roundings
# that all go one way exceed the bound of a scan from the end.
BEFORE = {
    "diff": (-20.0, 32, 3.0),
    "factored": (-20.0, 32, 3.0),
    "renorm": (-60.0, 32, 3.0),
}


@pytest.mark.parametrize("form", BEFORE)
def test_an_adversary_uses_the_budget_which_the_explicit_adjoint_lacks(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.7 of E is reached in reverse mode, and E of the reversed scan is exceeded."""
    first, chunk, least = BEFORE[form]
    g = np.full((chunk, 3), -(2.0**-9))
    g[0] = first
    g, data = drawn(g, "normal", FP32)
    data = Data(a=data.a, b=data.b, s=data.s, ybar=np.abs(data.ybar),
                last_bar=np.abs(data.last_bar))  # fmt: skip
    p = Program(form=form, chunk=chunk)
    _, got, want, allowed = next(tried(p, g, data, FP32, "away"))
    assert 0.7 < np.max(ratios(got, want, allowed)) <= 1.0
    monkeypatch.setattr(transposed, "run_from_start", nothing)
    _, got, want, allowed = next(tried(p, g, data, FP32, "away"))
    assert np.max(ratios(got, want, allowed)) > least


# First gate of a sequence of 64, and by how much torch exceeds the reversed scan's E;
# masked sums count from neither end, and hardly differ.
TORCH = {
    "difference": ("diff", -80.0, 4.0),
    "segment_sums": ("segsum", -80.0, None),
    "factored": ("factored", -80.0, 3.0),
    "ratio": ("ratio", -95.0, 3.0),
}


@pytest.mark.parametrize("name", TORCH)
def test_torch_is_inside(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """autograd's gradients of a large first gate; of three lengths, also short ones."""
    form, first, least = TORCH[name]
    contract = Contract(
        log=form, gate_gradient="reverse_cumsum", range="log",
        structure=Structure(kind="chunk", chunk=user_log_scans.CHUNK),
    )  # fmt: skip
    for steps in (64, 1, 150):
        g = -np.random.default_rng(0).uniform(0.01, 0.1, (steps, 3))
        g[0] = first
        g, data = drawn(g, "normal", FP32)
        inputs = {
            key: torch.tensor(v[None], dtype=torch.float32, requires_grad=True)
            for key, v in (("g", g), ("b", data.b), ("initial_state", data.s))
        }
        bars = [
            torch.tensor(v[None], dtype=torch.float32)
            for v in (data.ybar, data.last_bar)
        ]
        torch.autograd.backward(getattr(user_log_scans, name)(**inputs), bars)
        want, allowed = exact(data), allowances(bounded(g, data, contract, FP32))
        want["g"] = want["a"] * data.a
        for tensor, value in inputs.items():
            assert value.grad is not None
            got = value.grad[0].double().numpy()
            worst = np.max(ratios(got, want[tensor], allowed[tensor]))
            assert worst <= 1.0, (steps, tensor)
        if steps == 64 and least is not None:
            got = inputs["b"].grad[0].double().numpy()  # type: ignore[index]
            with monkeypatch.context() as patch:
                patch.setattr(transposed, "run_from_start", nothing)
                before = allowances(bounded(g, data, contract, FP32))["b"]
            assert np.max(ratios(got, want["b"], before)) > least


@pytest.mark.parametrize("form", FORMS)
def test_tiles_do_not_change_the_bound(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transposed sums go on across the engine's tiles."""
    g, data = drawn(gates("mixed", 50), "normal", FP32)
    contract = contract_for(Program(form=form, chunk=16, tree=True), FP32, "away")
    whole = bounded(g, data, contract, FP32).gradients
    monkeypatch.setattr("scancheck.oracles.engine.TILE_ENTRIES", 3 * 7)
    tiled = bounded(g, data, contract, FP32).gradients
    for name in ("b", "initial_state"):
        assert np.array_equal(tiled[name].error, whole[name].error), name
        assert np.array_equal(tiled[name].overflows, whole[name].overflows), name


@pytest.mark.parametrize("form", FORMS)
def test_a_gradient_that_misses_a_token_is_still_wrong(form: str) -> None:
    """A cotangent left out is hundreds of budgets away with gates of every day."""
    g, data = drawn(gates("moderate", 64), "normal", FP32)
    p = Program(form=form, chunk=16)
    allowed = allowances(bounded(g, data, contract_for(p, FP32, "away"), FP32))["b"]
    missing = data.ybar.copy()
    missing[40] = 0.0
    late = Data(a=data.a, b=data.b, s=data.s, ybar=missing, last_bar=data.last_bar)
    wrong = np.asarray(exact(late)["b"], dtype=float)
    assert np.max(ratios(wrong, exact(data)["b"], allowed)) > 100.0
