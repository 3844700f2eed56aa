"""Roundings between formats: outputs, kept states, casts and operands."""

import numpy as np
import pytest
from machines.emulator import Entry, Machine, Scan, chunked
from machines.families import drawn
from machines.trial import (
    Data,
    bounded,
    computed,
    exact,
    ratios,
    with_cotangents,
    worst,
)

from scancheck.bounds.budget import Budget
from scancheck.contract import CONTRACT_FORMATS, Contract, Structure
from scancheck.formats import BF16, FORMATS, FP16, FP32, Format, round_array

FAMILIES = ("near_one", "uniform", "negative", "telescoping", "growth")


def kept(fmt: Format, every: int) -> Scan:
    """A sequential scan that rounds its state into `fmt` every so many steps."""

    def scan(a: list[Entry], b: list[Entry], s: Entry) -> list[Entry]:
        out = []
        for t, (x, y) in enumerate(zip(a, b, strict=True)):
            if t % every == 0:
                s = s.stored(fmt)
            s = x * s + y
            out.append(s)
        return out

    return scan


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("direction", ["nearest", "away"])
def test_a_kept_state_fits_its_budget(family: str, direction: str) -> None:
    """States in bf16 or fp16, every step or every five, in order and in chunks."""
    data = with_cotangents(FP32, *drawn(family, FP32, 1, 33, 6))
    want = exact(data)["h"]
    machine = Machine(fmt=FP32, direction=direction)
    for state in ("bf16", "fp16"):
        fmt = FORMATS[state]
        programs = (
            (kept(fmt, 1), Structure(kind="sequential"), 1),
            (kept(fmt, 5), Structure(kind="sequential"), 5),
            (kept(fmt, 5), Structure(), 5),
            (chunked(5, state=fmt), Structure(kind="chunk", chunk=5), 5),
        )
        for scan, structure, every in programs:
            contract = Contract(
                structure=structure, state=state, state_every=every, ftz="no"
            )
            got = computed(scan, machine, data)["h"]
            allowed = bounded(data, contract, "fp32").outputs["h"]
            assert np.max(ratios(got, want, allowed)) <= 1.0


def test_a_state_in_a_short_format_does_not_fit_the_budget_of_a_long_one() -> None:
    """A bf16 state where fp32 is declared, and one kept oftener than declared."""
    data = with_cotangents(FP32, *drawn("near_one", FP32, 1, 33, 6))
    got = computed(kept(BF16, 1), Machine(fmt=FP32, direction="away"), data)["h"]
    sequential = Structure(kind="sequential")
    for contract in (
        Contract(structure=sequential),
        Contract(structure=sequential, state="fp16"),
        Contract(structure=sequential, state="bf16", state_every=8),
    ):
        allowed = bounded(data, contract, "fp32").outputs["h"]
        assert np.max(ratios(got, exact(data)["h"], allowed)) > 1.0


def backward_kept(
    data: Data, machine: Machine, fmt: Format, every: int, from_start: bool
) -> np.ndarray:
    """Cotangents G_t that are stored at chunk edges, counted from either end."""
    steps, g, out = len(data.a), data.last_bar, np.empty_like(data.b)
    for t in reversed(range(steps)):
        edge = (t + 1) % every == 0 if from_start else (steps - 1 - t) % every == 0
        if edge:
            g = machine.stored(fmt, g)
        out[t] = g = machine.add(data.ybar[t], g)
        g = machine.mul(data.a[t], g)
    return out


@pytest.mark.parametrize("from_start", [True, False])
def test_cotangents_may_be_kept_on_either_chunk_grid(from_start: bool) -> None:
    """A backward pass stores dS where the forward pass did, or counts from the end."""
    a, b, s = drawn("near_one", FP32, 1, 33, 6)
    data = with_cotangents(FP32, a, b, s)
    contract = Contract(
        structure=Structure(kind="chunk", chunk=8), state="bf16", state_every=8,
        ftz="no",
    )  # fmt: skip
    budget = bounded(data, contract, "fp32")
    got = backward_kept(data, Machine(fmt=FP32), BF16, 8, from_start)
    assert np.max(ratios(got, exact(data)["b"], budget.gradients["b"])) <= 1.0


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_stored_outputs_and_gradients_fit_their_budget(family: str, dtype: str) -> None:
    """fp32 computation on 16-bit tensors: one more rounding, except for fp32 states."""
    fmt = FORMATS[dtype]
    data = with_cotangents(fmt, *drawn(family, fmt, 1, 33, 6))
    got = computed(chunked(5), Machine(fmt=FP32), data)
    want = exact(data)
    stored = {n: round_array(fmt, x) for n, x in got.items() if n != "initial_state"}
    stored["initial_state"] = got["initial_state"]
    contract = Contract(structure=Structure(kind="chunk", chunk=5), ftz="no")
    budget = bounded(data, contract, dtype)
    assert worst(stored, want, budget) <= 1.0
    last = {"final_state": got["h"][-1]}
    assert worst(last, {"final_state": want["h"][-1]}, budget) <= 1.0
    assert _beyond(stored["h"], want["h"], bounded(data, contract, "fp32"))


def _beyond(got: np.ndarray, want: np.ndarray, budget: Budget) -> bool:
    return bool(np.max(ratios(got, want, budget.outputs["h"])) > 1.0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("direction", ["nearest", "away"])
def test_casts_fit_their_budget(family: str, direction: str) -> None:
    """Decay and drive rounded to bf16 at every step, declared; undeclared it fails."""
    data = with_cotangents(FP32, *drawn(family, FP32, 1, 33, 6))
    machine = Machine(fmt=FP32, direction=direction)

    def cast(a: list[Entry], b: list[Entry], s: Entry) -> list[Entry]:
        out = []
        for x, y in zip(a, b, strict=True):
            s = x.stored(BF16) * s + y.stored(BF16)
            out.append(s)
        return out

    got = computed(cast, machine, data)["h"]
    want = exact(data)["h"]
    casts = (("decay", "bf16"), ("drive", "bf16"))
    for structure in (Structure(kind="sequential"), Structure()):
        declared = bounded(data, Contract(structure=structure, casts=casts), "fp32")
        assert np.max(ratios(got, want, declared.outputs["h"])) <= 1.0
        assert _beyond(got, want, bounded(data, Contract(structure=structure), "fp32"))


@pytest.mark.parametrize("compute", ["bf16", "fp16", "tf32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_operands_are_rounded_where_the_computation_is_shorter(
    family: str, compute: str
) -> None:
    """Short computation on fp32 tensors starts with a cast of every operand."""
    fmt = CONTRACT_FORMATS[compute]
    data = with_cotangents(FP32, *drawn(family, FP32, 1, 33, 6))
    short = Data(
        a=round_array(fmt, data.a),
        b=round_array(fmt, data.b),
        s=round_array(fmt, data.s),
        ybar=round_array(fmt, data.ybar),
        last_bar=round_array(fmt, data.last_bar),
    )
    for structure in (Structure(kind="sequential"), Structure()):
        contract = Contract(compute=compute, structure=structure, ftz="no")
        budget = bounded(data, contract, "fp32")
        got = computed(kept(fmt, 10**6), Machine(fmt=fmt), short)
        assert worst(got, exact(data), budget) <= 1.0


def test_a_kept_state_beyond_its_format_is_predicted() -> None:
    """A state of 1e5 kept in fp16 is infinite; the prediction says from where on."""
    steps = 12
    a, b = np.ones((steps, 1)), np.full((steps, 1), 16384.0)
    data = with_cotangents(FP32, a, b, np.zeros(1))
    contract = Contract(
        structure=Structure(kind="sequential"), state="fp16", state_every=2
    )
    budget = bounded(data, contract, "fp32")
    got = computed(kept(FP16, 2), Machine(fmt=FP32), data)
    for name, allowed in (("h", budget.outputs["h"]), ("a", budget.gradients["a"])):
        assert not np.isfinite(got[name]).all()
        assert np.array_equal(allowed.overflows[0], ~np.isfinite(got[name]))


def test_tiles_change_nothing_of_states_that_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gradients at the start of a tile read the stored state too."""
    data = with_cotangents(FP32, *drawn("near_one", FP32, 1, 33, 6))
    for structure in (Structure(kind="sequential"), Structure()):
        contract = Contract(structure=structure, state="bf16", state_every=8)
        whole = bounded(data, contract, "fp32").gradients["a"].error
        with monkeypatch.context() as patch:
            patch.setattr("scancheck.oracles.engine.TILE_ENTRIES", 8 * data.b.shape[1])
            tiled = bounded(data, contract, "fp32").gradients["a"].error
        assert np.array_equal(tiled, whole)
