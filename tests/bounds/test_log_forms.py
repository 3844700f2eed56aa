"""Every log form of numerics 2.5 on emulated machines: nothing exceeds its budget E."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from machines.emulator import WIDE
from machines.log_forms import Program, gradients
from machines.trial import LINEAR_SCAN, Data, allowances, exact, machine, ratios
from numpy.typing import NDArray

from scancheck.bounds.budget import Allowance, budget_for
from scancheck.contract import Contract, ErrorModel, Structure
from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS, Format, round_array

FloatArray = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], FloatArray]

FORMS = ("segsum", "factored", "ratio", "renorm", "full")
GATES: dict[str, Draw] = {
    "near one": lambda rng, shape: -(2.0 ** -rng.uniform(8, 24, shape)),
    "moderate": lambda rng, shape: -rng.uniform(0.05, 0.8, shape),
    "strong": lambda rng, shape: -rng.uniform(2, 6, shape),
    "mixed": lambda rng, shape: -np.exp(rng.normal(-2, 2.5, shape)),
    "one strong": lambda rng, shape: np.where(
        rng.random(shape) < 0.05, -60.0, -1e-3 * rng.random(shape)
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
DRIVES: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "wide": lambda rng, shape: (
        rng.choice([-1.0, 1.0], shape) * np.exp(rng.normal(0, 5, shape))
    ),
    "subnormal": lambda rng, shape: rng.normal(size=shape) * 2.0**-130,
    "sparse": lambda rng, shape: rng.normal(size=shape) * (rng.random(shape) < 0.2),
}

MOVED = ("normal", "wide", "sparse")  # what adversaries, who have no range, are given


def drawn(gates: str, drive: str, fmt: Format, steps: int, lanes: int = 3) -> Data:
    """A scan whose decays are exp(g) exactly, with g and all else in the format."""
    rng = np.random.default_rng([5, steps])
    g = round_array(fmt, GATES[gates](rng, (steps, lanes)))
    b, ybar = (round_array(fmt, DRIVES[drive](rng, g.shape)) for _ in range(2))
    s, last = (round_array(fmt, DRIVES[drive](rng, (lanes,))) for _ in range(2))
    with np.errstate(under="ignore"):
        return Data(a=np.exp(g.astype(WIDE)), b=b, s=s, ybar=ybar, last_bar=last)


def gates_of(data: Data, fmt: Format) -> FloatArray:
    """The log gates of `drawn`, back from their exponentials."""
    with np.errstate(divide="ignore"):
        return round_array(fmt, np.asarray(np.log(data.a), dtype=float))


def contract_for(p: Program, fmt: Format, mode: str) -> Contract:
    """The contract of a program; adversaries get the default error models."""
    order = "tree" if p.tree else "sequential"
    where = Structure(kind="chunk", chunk=p.chunk, inner=order)
    if p.form == "full":
        where = Structure(kind=order)
    fair = ErrorModel(e0=1.01)
    return Contract(
        ln=fair if mode in ("nearest", "flush") else Contract().ln,
        compute=fmt.name, log=p.form, range="log", structure=where,
        state="compute" if p.keep is None else p.keep.name,
        state_every=1 if p.keep is None else p.chunk,
        ftz="yes" if mode == "flush" else "no",
        exp=fair if mode in ("nearest", "flush") else Contract().exp,
    )  # fmt: skip


def tried(
    p: Program, data: Data, fmt: Format, mode: str, *, given: bool = False
) -> Iterator[tuple[str, FloatArray, FloatArray, Allowance]]:
    """Name, computed and exact values and allowance of all outputs and gradients.

    `given`: the case has the decay itself, not its logarithm.
    """
    m, contract = machine(fmt, mode), contract_for(p, fmt, mode)
    m.exp_error = (contract.exp.e0, contract.exp.e1)
    m.ln_error = (contract.ln.e0, contract.ln.e1)
    gates = np.zeros_like(data.b) if given else gates_of(data, fmt)
    name = "a" if given else "g"
    tensors = data.tensors if given else {**data.tensors, "g": gates[None]}
    if not given:
        del tensors["a"]
    allowed = allowances(
        budget_for(LINEAR_SCAN, tensors, {}, contract, fmt.name, data.cotangents)
    )
    wide = WIDE if m.exact else float
    log, x, s, ybar, last = (
        np.asarray(v, wide)
        for v in (gates, data.b, data.s, data.ybar, data.last_bar)
    )  # fmt: skip
    with np.errstate(all="ignore"):
        w = np.asarray(data.a, wide) if given else m.exp(log)
        got = gradients(m, p, log, w, x, s, (ybar, last))
        want = exact(data)
        want["g"] = want["a"] * data.a
    got["a"] = got.pop("w")
    for tensor in ("h", name, "b", "initial_state"):
        yield tensor, got[tensor], want[tensor], allowed[tensor]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gates", GATES)
def test_no_program_exceeds_its_budget(form: str, gates: str) -> None:
    """States and explicit gradients: nearest, flushed and adversarial, err <= E.

    A result that is not finite has been predicted.
    """
    modes = ("nearest", "flush", "away", "random")
    for dtype, tree, mode in product(("fp32", "bf16"), (False, True), modes):
        fmt = FORMATS[dtype]
        p = Program(form=form, chunk=8, tree=tree)
        for drive in DRIVES if mode in ("nearest", "flush") else ("normal", "wide"):
            data = drawn(gates, drive, fmt, 21)
            for tensor, got, want, allowed in tried(p, data, fmt, mode):
                ratio = np.max(ratios(got, want, allowed))
                assert ratio <= 1.0, (dtype, tree, mode, drive, tensor)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunk", [1, 32, 64])
def test_other_chunks_and_fp16(form: str, chunk: int) -> None:
    """One step a chunk, one chunk for all, and a format with a short range."""
    for gates, tree in product(("moderate", "strong", "reset"), (False, True)):
        p = Program(form=form, chunk=chunk, tree=tree)
        for dtype in ("fp32", "fp16"):
            data = drawn(gates, "normal", FORMATS[dtype], 40)
            for _, got, want, allowed in tried(p, data, FORMATS[dtype], "nearest"):
                assert np.max(ratios(got, want, allowed)) <= 1.0, (gates, tree, dtype)


@pytest.mark.parametrize("form", ["segsum", "factored", "ratio", "renorm"])
def test_a_state_kept_in_bf16_fits_its_budget(form: str) -> None:
    """Rounded at chunk edges, forwards and in the adjoint; and it needs that budget."""
    p = Program(form=form, chunk=8, keep=FORMATS["bf16"])
    for mode, gates in product(("nearest", "away"), ("near one", "strong")):
        data = drawn(gates, "normal", FORMATS["fp32"], 40)
        for tensor, got, want, allowed in tried(p, data, FORMATS["fp32"], mode):
            assert np.max(ratios(got, want, allowed)) <= 1.0, (mode, gates, tensor)
    data = drawn("near one", "normal", FORMATS["fp32"], 40)
    _, got, want, _ = next(tried(p, data, FORMATS["fp32"], "nearest"))
    whole = next(tried(replace(p, keep=None), data, FORMATS["fp32"], "nearest"))[3]
    assert np.max(ratios(got, want, whole)) > 10.0


@pytest.mark.parametrize("form", FORMS)
def test_tiles_do_not_change_the_bound(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that lie across the engine's tiles give the same budget."""
    data = drawn("mixed", "normal", FORMATS["fp32"], 50)
    p = Program(form=form, chunk=16, tree=True)
    whole = list(tried(p, data, FORMATS["fp32"], "nearest"))
    monkeypatch.setattr("scancheck.oracles.engine.TILE_ENTRIES", 3 * 7)
    tiled = list(tried(p, data, FORMATS["fp32"], "nearest"))
    for one, other in zip(whole, tiled, strict=True):
        assert np.array_equal(one[3].error, other[3].error), one[0]


@pytest.mark.parametrize("form", FORMS)
def test_an_adversary_uses_the_budget(form: str) -> None:
    """Roundings that all go one way reach 0.9 of E, those to nearest 0.1.

    In signed logarithms they partly cancel: 0.7.
    """
    for mode, least in (("away", 0.7 if form == "full" else 0.9), ("nearest", 0.1)):
        p = Program(form=form, chunk=16)
        data = drawn("moderate", "normal", FORMATS["fp32"], 48)
        _, got, want, allowed = next(tried(p, data, FORMATS["fp32"], mode))
        assert np.max(ratios(got, want, allowed)) > least


@pytest.mark.parametrize("form", ["segsum", "renorm", "full"])
@pytest.mark.parametrize("gates", ["strong", "edge of fp32", "reset", "one strong"])
def test_nothing_is_excused_that_the_form_holds(form: str, gates: str) -> None:
    """Forms without a range of their own predict no overflow at decays below one."""
    data = drawn(gates, "normal", FORMATS["fp32"], 64)
    p = Program(form=form, chunk=32)
    for tensor, got, _, allowed in tried(p, data, FORMATS["fp32"], "nearest"):
        assert np.isfinite(got).all(), tensor
        assert not allowed.overflows.any(), tensor


@pytest.mark.parametrize("form", ["factored", "ratio"])
@pytest.mark.parametrize("gates", ["strong", "one strong", "reset", "edge of fp32"])
def test_range_is_predicted_where_it_is_left(form: str, gates: str) -> None:
    """States that are not finite are predicted, and of the finite ones very few."""
    data = drawn(gates, "normal", FORMATS["fp32"], 64, 8)
    p = Program(form=form, chunk=32)
    _, got, _, allowed = next(tried(p, data, FORMATS["fp32"], "nearest"))
    bad, predicted = ~np.isfinite(got), allowed.overflows[0]
    assert bad.any()
    assert predicted[bad].all()
    assert np.mean(predicted & ~bad) < 0.01


@pytest.mark.parametrize("form", FORMS)
def test_a_closed_gate_is_held_by_masked_sums_alone(form: str) -> None:
    """log 0: a masked sum forgets the past exactly, all other forms give NaN."""
    data = drawn("closed", "normal", FORMATS["fp32"], 40)
    p = Program(form=form, chunk=8)
    _, got, want, allowed = next(tried(p, data, FORMATS["fp32"], "nearest"))
    first = np.argmax(data.a == 0.0, axis=0)
    after = (np.arange(40)[:, None] >= first) & (data.a == 0.0).any(axis=0)
    if form == "segsum":
        assert np.isfinite(got).all()
        assert not allowed.overflows.any()
        resets = data.a == 0.0
        assert np.array_equal(got[resets], want[resets])
    else:
        assert np.array_equal(np.isnan(got), after)
        assert np.array_equal(allowed.overflows[0], after)


def test_ratio_takes_decays_as_they_are() -> None:
    """Given decays, negative and zero ones too, are divided by without a logarithm."""
    for dtype, tree, mode in product(
        ("fp32", "bf16"), (False, True), ("nearest", "away")
    ):
        fmt = FORMATS[dtype]
        rng = np.random.default_rng(3)
        data = drawn("moderate", "normal", fmt, 40)
        a = round_array(fmt, np.asarray(data.a, float)) * rng.choice([-1, 1], (40, 3))
        a[11, 1] = 0.0
        data = replace(data, a=a)
        p = Program(form="ratio", chunk=8, tree=tree)
        for tensor, got, want, allowed in tried(p, data, fmt, mode, given=True):
            if mode == "away":
                got = np.where(allowed.overflows[0], np.nan, got)
            assert np.max(ratios(got, want, allowed)) <= 1.0, (tensor, dtype, tree)
            if tensor == "h":
                assert allowed.overflows[0].sum() == 29
                assert np.isnan(got).sum() == 29


@pytest.mark.parametrize("form", ["segsum", "factored", "renorm", "full"])
def test_other_forms_refuse_decays_without_logarithms(form: str) -> None:
    """A case that gives the decay itself has no log gates: one clear message."""
    data = drawn("moderate", "normal", FORMATS["fp32"], 4)
    data = replace(data, a=np.asarray(data.a, float))
    contract = contract_for(Program(form=form, chunk=2), FORMATS["fp32"], "nearest")
    with pytest.raises(CaseInvalid, match="log gates"):
        budget_for(LINEAR_SCAN, data.tensors, {}, contract, "fp32")
