"""Where factored exponentials leave the range: all that they spoil is told, no more."""

from typing import Any

import numpy as np
import pytest

from scancheck.bounds.budget import Allowance, budget_for
from scancheck.formats import FORMATS, round_array
from scancheck.kernels.models.chunk_catalog import chunk_model
from scancheck.ops import op_named
from scancheck.oracles import engine
from scancheck.oracles.fp64 import solve_fp64
from scancheck.recipes.inputs import Inputs
from scancheck.runner import execute

CHUNK, STEPS = 8, 21
GATES = {"simple_gla": "g", "gla": "gk", "rwkv6": "w"}
RANK_ONE = {"gated_delta_rule": "g", "kda": "g", "rwkv7": "w"}
ALL = GATES | RANK_ONE
LN_LARGEST = np.log(FORMATS["fp32"].largest)
CASES = 25
Arrays = dict[str, Any]


def drawn(op: str, dtype: str, seed: int, sign: float) -> tuple[Arrays, Arrays]:
    """Inputs and cotangents; each chunk's gates add up to some way to the range's end.

    Other tensors have scales of their own, up to where products meet the end.
    """
    rng = np.random.default_rng(seed)
    known, sizes = op_named(op), {"B": 1, "T": STEPS, "H": 1, "HV": 1, "K": 2, "V": 2}

    def stored(spec: Any, x: Any) -> Any:
        return round_array(FORMATS[dtype if spec.kind == "storage" else "fp32"], x)

    tensors, bars = {}, {}
    for spec in known.inputs:
        if not spec.required and (spec.name == "gv" or rng.random() < 0.5):
            continue
        shape = [sizes[axis] for axis in spec.axes]
        x = rng.standard_normal(shape) * 10 ** rng.uniform(-2, 2)
        if op in RANK_ONE and spec.name in ("k", "a", "beta"):
            # Transitions that do not grow by themselves.
            x = x / np.linalg.norm(x, axis=-1, keepdims=True)
            x = rng.random(shape) if spec.name == "beta" else -np.abs(x)
        if spec.name == "b":
            x = -0.5 * tensors["a"]
        if spec.name == ALL[op]:
            x = np.abs(rng.standard_normal(shape))
            for start in range(0, STEPS, CHUNK):
                part = x[:, start : start + CHUNK]
                share = part.shape[1] / CHUNK * rng.uniform(0.2, 1.1, part.shape[2:])
                part *= sign * LN_LARGEST * share / part.sum(1, keepdims=True)
        tensors[spec.name] = stored(spec, x)
    for spec in known.outputs:
        shape = [sizes[axis] for axis in spec.axes]
        bar = rng.standard_normal(shape) * 10 ** rng.uniform(-2, 3)
        if spec.name == "o" and rng.random() < 0.5:
            bar *= rng.random((1, STEPS, 1, 1)) < 0.2
        bars[spec.name] = stored(spec, bar)
    return tensors, bars


def run(op: str, dtype: str, operands: str, given: Arrays, bars: Arrays) -> Any:
    """Each tensor that the model gives, and its allowance."""
    kernel = chunk_model(op, "log_factored", chunk=CHUNK, operands=operands)
    inputs = Inputs(tensors=given, switches={})
    found = execute(kernel, op_named(op), inputs, dtype, cotangents=bars, runs=1)
    assert found.problem is None
    assert kernel.contract is not None
    budget = budget_for(op_named(op), given, {}, kernel.contract, dtype, bars)
    for got, allowed in (
        (found.outputs, budget.outputs),
        (found.gradients, budget.gradients),
    ):
        for name, value in got.items():
            yield name, np.asarray(value, dtype=float), allowed[name]


def out_of_storage(allowed: Allowance) -> Any:
    """Whether the value itself may be infinite in its storage format."""
    return allowed.magnitude + allowed.error >= allowed.largest


@pytest.mark.parametrize("sign", [-1.0, 0.6])
@pytest.mark.parametrize("operands", ["compute", "storage"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("op", ALL)
def test_all_that_is_not_finite_was_foreseen(
    op: str, dtype: str, operands: str, sign: float
) -> None:
    """In tensors of every op, dtype and operand format, near the end of the range."""
    lost = foreseen = whole = 0
    for seed in range(CASES):
        given, bars = drawn(op, dtype, seed, sign)
        for name, got, allowed in run(op, dtype, operands, given, bars):
            bad, may = ~np.isfinite(got), allowed.overflows | out_of_storage(allowed)
            assert not (bad & ~may).any(), (seed, name, np.argwhere(bad & ~may)[:4])
            lost, foreseen = lost + int(bad.sum()), foreseen + int(may.sum())
            whole += bad.size
    assert 0.05 * whole < lost
    # With decays the model loses half or more of what some kernel may lose.
    assert sign > 0 or foreseen < 2 * lost


@pytest.mark.parametrize("op", GATES)
def test_only_the_key_and_the_chunk_that_overflow_are_lost(op: str) -> None:
    """One key of the second of four chunks, and a cotangent there alone."""
    rng = np.random.default_rng(3)
    known = op_named(op)
    sizes = {"B": 1, "T": 32, "H": 1, "HV": 1, "K": 2, "V": 2}
    given = {
        spec.name: rng.standard_normal([sizes[axis] for axis in spec.axes])
        for spec in known.inputs
        if spec.required
    }
    per_key = op != "simple_gla"
    gates = np.full_like(given[GATES[op]], -0.125)
    # Not yet out of the range by itself; times a cotangent it is.
    gates[:, 8:16, ..., :1] = -10.75
    given[GATES[op]] = gates
    bar = np.zeros((1, 32, 1, 2))
    bar[0, 15] = 2.0**22
    contract = chunk_model(op, "log_factored", chunk=CHUNK).contract
    assert contract is not None
    given = {n: round_array(FORMATS["fp32"], x) for n, x in given.items()}
    budget = budget_for(known, given, {}, contract, "fp32", {"o": bar})
    assert not budget.outputs["o"].overflows.any()
    assert not budget.outputs["final_state"].overflows.any()
    read = budget.gradients["r" if op == "rwkv6" else "q"].overflows[0, :, 0]
    gate = budget.gradients[GATES[op]].overflows[0, :, 0].reshape(32, -1)
    assert read[15, 0]
    assert not np.delete(read, 15, axis=0).any()
    # A gate has met the reads of all later tokens.
    assert gate[:15, 0].all()
    assert not gate[16:].any()
    if per_key:
        assert not read[:, 1].any()
        assert not gate[:, 1].any()
    plain = chunk_model(op, "log_diff", chunk=CHUNK).contract
    assert plain is not None
    budget = budget_for(known, given, {}, plain, "fp32", {"o": bar})
    for allowed in (*budget.outputs.values(), *budget.gradients.values()):
        assert not allowed.overflows.any()


@pytest.mark.parametrize("op", GATES)
def test_tiles_that_cut_chunks_foresee_the_same(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three tokens a tile."""
    contract = chunk_model(op, "log_factored", chunk=CHUNK).contract
    assert contract is not None
    usual = engine.TILE_ENTRIES
    for seed in range(6):
        given, bars = drawn(op, "fp32", seed, -1.0)
        found = []
        for entries in (usual, 12):
            monkeypatch.setattr(engine, "TILE_ENTRIES", entries)
            budget = budget_for(op_named(op), given, {}, contract, "fp32", bars)
            found.append(budget.outputs | budget.gradients)
        whole, cut = found
        for name, allowed in whole.items():
            same = allowed.overflows == cut[name].overflows
            assert same.all(), (seed, name)


@pytest.mark.parametrize("op", RANK_ONE)
def test_one_chunk_of_a_rank_one_transition_is_lost(op: str) -> None:
    """The second of four, for its cotangent alone, and gates before its end."""
    rng = np.random.default_rng(3)
    known = op_named(op)
    sizes = {"B": 1, "T": 32, "H": 1, "HV": 1, "K": 2, "V": 2}
    given = {
        spec.name: 0.5 * rng.standard_normal([sizes[axis] for axis in spec.axes])
        for spec in known.inputs
        if spec.required
    }
    gates = np.full_like(given[RANK_ONE[op]], -0.125)
    gates[:, 8:16] = -10.75
    given[RANK_ONE[op]] = gates
    given = {n: round_array(FORMATS["fp32"], x) for n, x in given.items()}
    bar = np.zeros((1, 32, 1, 2))
    bar[0, 15] = 2.0**22
    for variant, lost in (("log_factored", True), ("log_diff", False)):
        contract = chunk_model(op, variant, chunk=CHUNK).contract
        assert contract is not None
        budget = budget_for(known, given, {}, contract, "fp32", {"o": bar})
        assert not budget.outputs["o"].overflows.any()
        read = budget.gradients["r" if op == "rwkv7" else "q"].overflows[0]
        gate = budget.gradients[RANK_ONE[op]].overflows[0]
        assert read[8:16].all() == gate[:16].all() == lost
        assert not np.delete(read, range(8, 16), axis=0).any()
        assert not gate[16:].any()


@pytest.mark.parametrize("op", ALL)
def test_what_falls_off_below_meets_the_large_factor(op: str) -> None:
    """exp(c_C) G of small cotangents is subnormal, and exp(-c_j) k_j large."""
    worst = 0.0
    for seed in range(8):
        given, bars = drawn(op, "fp32", seed, -1.0)
        scale = 2.0 ** -(4 * seed)
        bars = {n: round_array(FORMATS["fp32"], x * scale) for n, x in bars.items()}
        bars["o"][:, :16] = 0.0
        want = solve_fp64(op_named(op), given, {}, bars).gradients
        for name, got, allowed in run(op, "fp32", "compute", given, bars):
            if name not in want:
                continue
            off = np.abs(got - want[name].value)
            held = np.isfinite(got) & (off > 0.0)
            assert (off[held] <= allowed.error[held]).all(), (seed, name)
            if name == "v" and held.any():
                worst = max(worst, float((off[held] / allowed.error[held]).max()))
    assert worst > 1e-3
