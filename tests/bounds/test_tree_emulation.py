"""Bounds of named orders: no program of the name exceeds them, and they are sharper."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines.emulator import (
    Entry,
    Machine,
    Scan,
    Tape,
    chunked,
    hillis_steele,
)
from machines.families import FAMILIES, drawn
from machines.trial import (
    DOUBLING,
    LINEAR_SCAN,
    NAMED_PROGRAMS,
    Array,
    Data,
    exact,
    in_chunks,
    machine,
    ratios,
    with_cotangents,
)

from scancheck.bounds import tree_emulation
from scancheck.bounds.budget import Budget, budget_for
from scancheck.contract import Contract, Structure
from scancheck.formats import BF16, FORMATS, FP16, FP32, Format, round_array
from scancheck.oracles import engine

# Values of these do not fit into fp16.
WIDE_RANGE = ("tiny_decay", "subnormal", "huge_range", "dip")


def outputs(data: Data, contract: Contract, dtype: str) -> Budget:
    """The budget of the outputs alone."""
    return budget_for(LINEAR_SCAN, data.tensors, {}, contract, dtype)


def counted(contract: Contract) -> Contract:
    """The contract without the name of its order."""
    return replace(contract, structure=replace(contract.structure, order="any"))


def states(scan: Scan, on: Machine, data: Data) -> Array:
    """The states that a program computes."""
    tape = Tape(on)
    a, b, s = tape.inputs(data.a), tape.inputs(data.b), tape.inputs(data.s[None])
    with np.errstate(all="ignore"):
        return np.array([entry.value for entry in scan(a, b, s[0])])


def reached(scan: Scan, on: Machine, data: Data, budget: Budget) -> float:
    """The largest ratio over the states and the final one."""
    got, want = states(scan, on, data), exact(data)["h"]
    last = budget.outputs["final_state"]
    return float(
        max(
            np.max(ratios(got, want, budget.outputs["h"])),
            np.max(ratios(got[-1:], want[-1:], last)),
        )
    )


def alternating(fmt: Format, steps: int, lanes: int) -> Data:
    """a = -1 and b that hardly changes: terms cancel pairwise (numerics 2.3)."""
    rng = np.random.default_rng(steps)
    drift = np.cumsum(rng.normal(size=(steps, lanes)), 0)
    return with_cotangents(
        fmt,
        -np.ones((steps, lanes)),
        round_array(fmt, 1.0 + 1e-4 * drift),
        np.full(lanes, 0.5),
    )


@pytest.mark.parametrize("program", NAMED_PROGRAMS)
@pytest.mark.parametrize("steps", [1, 2, 21])
def test_no_program_of_a_name_exceeds_its_budget(program: str, steps: int) -> None:
    """In order or by doubling, joined or not: err <= E, whatever the roundings are."""
    scan, structure = NAMED_PROGRAMS[program]
    for family in FAMILIES:
        for dtype in ("fp32", "bf16", "fp16"):
            if dtype == "fp16" and family in WIDE_RANGE:
                continue
            fmt = FORMATS[dtype]
            data = with_cotangents(fmt, *drawn(family, fmt, 1, steps, 3))
            for ftz, modes in (
                ("no", ("nearest", "away", "random")),
                ("yes", ("flush",)),
            ):
                contract = Contract(compute=dtype, structure=structure, ftz=ftz)
                budget = outputs(data, contract, dtype)
                for mode in modes:
                    ratio = reached(scan, machine(fmt, mode), data, budget)
                    assert ratio <= 1.0, (family, dtype, mode)


@pytest.mark.parametrize("program", ["doubling", "64 tree", "64 sequential joined"])
@pytest.mark.parametrize("family", ["near_one", "negative", "telescoping", "zeros"])
def test_long_chunks_and_their_tails_fit(family: str, program: str) -> None:
    """A whole chunk of 64 steps and one of three: err <= E."""
    scan, structure = NAMED_PROGRAMS[program]
    for dtype in ("fp32", "bf16"):
        fmt = FORMATS[dtype]
        data = with_cotangents(fmt, *drawn(family, fmt, 1, 67, 6))
        contract = Contract(compute=dtype, structure=structure, ftz="no")
        budget = outputs(data, contract, dtype)
        for mode in ("nearest", "away", "random"):
            assert reached(scan, machine(fmt, mode), data, budget) <= 1.0, dtype


NUMBERS = st.one_of(
    st.sampled_from(
        [0.0, -1.0, 1.0, 0.5, 1.0 - 2.0**-8, 2.0**-126, 2.0**-140, 2.0**60]
    ),
    st.floats(-2.0, 2.0, width=32),
)


@settings(max_examples=150, deadline=None)
@given(
    program=st.sampled_from(sorted(NAMED_PROGRAMS)),
    dtype=st.sampled_from(["fp32", "bf16", "fp16"]),
    mode=st.sampled_from(["nearest", "away", "zero", "random", "flush"]),
    rows=st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=24),
    start=NUMBERS,
)
def test_no_drawn_case_exceeds_its_budget(
    program: str, dtype: str, mode: str, rows: list[tuple[float, float]], start: float
) -> None:
    """Resets, cancellation, subnormals and growth in any order: err <= E."""
    fmt, (scan, structure) = FORMATS[dtype], NAMED_PROGRAMS[program]
    values = np.clip([(start, start), *rows], -fmt.largest, fmt.largest)
    held = round_array(fmt, values)[:, :, None]
    data = with_cotangents(fmt, held[1:, 0], held[1:, 1], held[0, 0])
    ftz = "yes" if mode == "flush" else "no"
    contract = Contract(compute=dtype, structure=structure, ftz=ftz)
    assert reached(scan, machine(fmt, mode), data, outputs(data, contract, dtype)) <= 1


@dataclass(slots=True)
class Fused:
    """A value whose product joins a sum before it is rounded."""

    machine: Machine
    value: Array
    factors: tuple[Array, Array] | None = None

    def __mul__(self, other: "Fused") -> "Fused":
        value = self.machine.mul(self.value, other.value)
        return Fused(self.machine, value, (self.value, other.value))

    def __add__(self, other: "Fused") -> "Fused":
        assert self.factors is not None
        return Fused(self.machine, self.machine.fma(*self.factors, other.value))


@pytest.mark.parametrize("program", ["doubling", "5 sequential", "5 tree joined"])
@pytest.mark.parametrize("flushed", ["nothing", "results", "operands", "both"])
def test_fused_operations_stay_below(program: str, flushed: str) -> None:
    """One rounding less, and whatever is flushed before or after it: err <= E."""
    scan, structure = NAMED_PROGRAMS[program]
    contract = Contract(
        structure=structure, ftz="no" if flushed == "nothing" else "yes"
    )
    for family in FAMILIES:
        data = with_cotangents(FP32, *drawn(family, FP32, 5, 22, 8))
        budget = outputs(data, contract, "fp32").outputs["h"]
        on = Machine(
            fmt=FP32,
            flush=flushed in ("results", "both"),
            flush_inputs=flushed in ("operands", "both"),
        )
        a, b = ([Fused(on, row) for row in rows] for rows in (data.a, data.b))
        with np.errstate(all="ignore"):
            got = scan(a, b, Fused(on, data.s))  # type: ignore[arg-type]
        values = np.array([fused.value for fused in got])
        assert np.max(ratios(values, exact(data)["h"], budget)) <= 1.0, family


@pytest.mark.parametrize("inner", ["sequential", "tree"])
@pytest.mark.parametrize("state", [BF16, FP16])
def test_a_state_kept_at_chunk_edges_fits(inner: str, state: Format) -> None:
    """The carried state is rounded before every chunk, joined or scanned from."""
    contract = Contract(
        structure=in_chunks(5, inner), state=state.name, state_every=5, ftz="no"
    )
    for family in ("near_one", "uniform", "negative", "telescoping"):
        data = with_cotangents(FP32, *drawn(family, FP32, 1, 33, 6))
        budget = outputs(data, contract, "fp32")
        unkept = outputs(
            data, replace(contract, state="compute", state_every=1), "fp32"
        )
        want = exact(data)["h"]
        for restart in (True, False):
            scan = chunked(5, inner, state=state, restart=restart)
            for direction in ("nearest", "away", "random"):
                got = states(scan, Machine(fmt=FP32, direction=direction), data)
                assert np.max(ratios(got, want, budget.outputs["h"])) <= 1.0
            assert np.max(ratios(got, want, unkept.outputs["h"])) > 1.0


@pytest.mark.parametrize("structure", [DOUBLING, in_chunks(64, "sequential")])
def test_cancelling_terms_make_it_far_sharper(structure: Structure) -> None:
    """a = -1 with a slowly varying b: some 15 to 150 times below the counted bound."""
    data = alternating(FP32, 1024, 4)
    contract = Contract(structure=structure, ftz="no")
    sharp = outputs(data, contract, "fp32").outputs["h"].error[0, -1]
    loose = outputs(data, counted(contract), "fp32").outputs["h"].error[0, -1]
    assert np.all(loose / sharp > 15)
    assert np.all(loose / sharp < 1000)


@pytest.mark.parametrize("family", ["uniform", "signed", "negative", "growth"])
def test_ordinary_data_make_it_sharper(family: str) -> None:
    """Two to forty times below the counted bound, for chunks of 8 steps."""
    data = with_cotangents(FP32, *drawn(family, FP32, 2, 256, 8))
    for inner in ("sequential", "tree"):
        contract = Contract(structure=in_chunks(8, inner), ftz="no")
        sharp = outputs(data, contract, "fp32").outputs["h"].error[0, -1]
        loose = outputs(data, counted(contract), "fp32").outputs["h"].error[0, -1]
        assert 2.0 < np.median(loose / sharp) < 40


def test_the_worst_case_of_a_named_tree_is_reached() -> None:
    """Always rounding away reaches 0.9 of the budget of doubling: it is not vacuous."""
    data = with_cotangents(FP32, *drawn("near_one", FP32, 2, 64, 8))
    budget = outputs(data, Contract(structure=DOUBLING, ftz="no"), "fp32")
    ratio = reached(hillis_steele, machine(FP32, "away"), data, budget)
    assert 0.9 < ratio <= 1.0


def even_terms_first(a: list[Entry], b: list[Entry], s: Entry) -> list[Entry]:
    """Each state as a sum of its terms, as a matrix product would form it."""
    terms, out = [s], []
    for x, y in zip(a, b, strict=True):
        terms = [x * term for term in terms] + [y]
        ordered = terms[::2] + terms[1::2]
        total = ordered[0]
        for term in ordered[1:]:
            total = total + term
        out.append(total)
    return out


def test_a_chunk_without_a_name_may_be_a_matrix_product() -> None:
    """Sums of terms in another order fit a chunk's bound, and exceed a named one's."""
    data = alternating(FP32, 64, 16)
    structure = in_chunks(64, "sequential")
    contract = Contract(structure=structure, ftz="no")
    for mode in ("nearest", "away"):
        on = machine(FP32, mode)
        loose = outputs(data, counted(contract), "fp32")
        assert reached(even_terms_first, on, data, loose) <= 1.0
        budget = outputs(data, contract, "fp32")
        assert reached(even_terms_first, on, data, budget) > 1.0


@pytest.mark.parametrize(
    "structure", [DOUBLING, in_chunks(8, "tree"), in_chunks(8, "sequential")]
)
@pytest.mark.parametrize("tile", [1, 5, 8, 30])
def test_tiles_do_not_change_the_bound(
    monkeypatch: pytest.MonkeyPatch, structure: Structure, tile: int
) -> None:
    """Chunks and trees that cross the edges of tiles are bounded as in one piece."""
    data = with_cotangents(FP32, *drawn("signed", FP32, 4, 67, 3))
    contract = Contract(structure=structure)
    whole = outputs(data, contract, "fp32")
    monkeypatch.setattr(engine, "TILE_ENTRIES", 3 * tile)
    pieces = outputs(data, contract, "fp32")
    for name, allowance in whole.outputs.items():
        np.testing.assert_array_equal(pieces.outputs[name].error, allowance.error)


OTHER_CONTRACTS: tuple[dict[str, Any], ...] = (
    {"comp": "kahan"},
    {"comp": "full"},
    {"state": "bf16", "state_every": 1},
    {"state": "bf16", "state_every": 12},
)


@pytest.mark.parametrize("fields", OTHER_CONTRACTS)
def test_what_is_not_emulated_keeps_its_counted_bound(fields: dict[str, Any]) -> None:
    """Compensated kernels, and states rounded elsewhere than at chunk edges."""
    data = with_cotangents(FP32, *drawn("signed", FP32, 4, 40, 3))
    contract = Contract(structure=in_chunks(8, "sequential"), **fields)
    got, want = (
        outputs(data, contract, "fp32"),
        outputs(data, counted(contract), "fp32"),
    )
    for name, allowance in want.outputs.items():
        np.testing.assert_array_equal(got.outputs[name].error, allowance.error)


def test_gradients_keep_their_counted_bound() -> None:
    """Whatever order a backward pass has, its budget does not know the name."""
    data = with_cotangents(FP32, *drawn("signed", FP32, 4, 40, 3))
    for structure in (DOUBLING, in_chunks(8, "sequential")):
        contract = Contract(structure=structure)
        got, want = (
            budget_for(LINEAR_SCAN, data.tensors, {}, c, "fp32", data.cotangents)
            for c in (contract, counted(contract))
        )
        for name, allowance in want.gradients.items():
            np.testing.assert_array_equal(got.gradients[name].error, allowance.error)


def test_beyond_its_memory_the_counted_bound_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tree over more steps than may be kept has the bound of any tree."""
    data = with_cotangents(FP32, *drawn("signed", FP32, 4, 40, 3))
    contract = Contract(structure=DOUBLING)
    sharp = outputs(data, contract, "fp32").outputs["h"].error
    monkeypatch.setattr(tree_emulation, "MEMORY_LIMIT", 1000)
    loose = outputs(data, contract, "fp32").outputs["h"].error
    want = outputs(data, counted(contract), "fp32").outputs["h"].error
    np.testing.assert_array_equal(loose, want)
    assert np.any(sharp < loose)
