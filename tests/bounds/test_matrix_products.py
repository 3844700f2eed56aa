"""Chunks in matrix products of short operands stay within their budgets, and no other.

The chunks are those of `machines.chunk_products`, written apart from the models.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from machines.chunk_products import Chunk, Unit, backward, forward, rounded, split
from numpy.typing import NDArray
from torch import Tensor

from scancheck.bounds.budget import budget_for
from scancheck.bounds.moments import moments_for, rho, rho_limit
from scancheck.contract import Contract, Structure
from scancheck.errors import CaseInvalid
from scancheck.formats import BF16, FORMATS, FP16, FP32, TF32, Format, round_array
from scancheck.ops import OPS
from scancheck.oracles.ball import certified_radius
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System

FloatArray = NDArray[np.float64]
Arrays = dict[str, FloatArray]
SIZES = {"B": 1, "H": 2, "HV": 4, "K": 16, "V": 6, "P": 6, "N": 16, "G": 2}
# Steps for chunks of 16 and 64: the last chunk is cut short.
STEPS = {16: 39, 64: 90}
FORMS = {
    "linear_attention": ("masked",),
    "simple_gla": ("masked",),
    "retention": ("masked",),
    "ssd": ("masked",),
    "gla": ("factored", "two_level"),
    "rwkv6": ("factored",),
}
LOGS = {"masked": "diff", "factored": "factored", "two_level": "diff"}
CASES = [(name, form) for name, forms in FORMS.items() for form in forms]
# The backward pass is written out for queries that read after their own token.
PASSES = [(*case, way) for way in (False, True) for case in CASES]
PASSES = [one for one in PASSES if one[0] != "rwkv6" or not one[2]]
GATES = {"slow": 0.01, "usual": 0.1, "strong": 0.6}


def drawn(name: str, steps: int, dtype: str, gate: float, seed: int) -> Arrays:
    """Gaussian tensors and states of the op, stored in the dtype."""
    op, rng = OPS[name], np.random.default_rng(seed)
    sizes = SIZES | {"T": steps} | ({} if "HV" in op.size_names else {"H": 4})
    tensors = {}
    for spec in op.inputs:
        if spec.name in ("gv", "D", "z", "dt_bias"):
            continue
        x = rng.normal(size=[sizes[axis] for axis in spec.axes])
        if spec.name in ("g", "gk", "w"):
            x = -gate * np.abs(x)
        elif spec.name == "A":
            x = -np.abs(x)
        elif spec.name == "dt":
            x = gate * np.abs(x)
        fmt = FORMATS[dtype if spec.kind == "storage" else "fp32"]
        tensors[spec.name] = round_array(fmt, x)
    return tensors


def drawn_bars(name: str, tensors: Arrays, dtype: str, seed: int) -> Arrays:
    """Cotangents of both outputs."""
    op, rng = OPS[name], np.random.default_rng(seed + 500)
    truth = solve(Fp64System(), op, tensors, {})
    return {
        spec.name: round_array(
            FORMATS[dtype if spec.kind == "storage" else "fp32"],
            rng.normal(size=truth.outputs[spec.name].shape),
        )
        for spec in op.outputs
    }


def heads(x: Tensor, count: int) -> Tensor:
    """[B, T, H, N] -> [B count, T, N]."""
    x = x.repeat_interleave(count // x.shape[2], 2).transpose(1, 2)
    return x.reshape(-1, *x.shape[2:])


def normal_form(
    name: str, t: dict[str, Tensor], cast: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Queries, keys, values, log decays and initial state of the op's tensors."""
    if name == "ssd":
        count = t["x"].shape[2]
        d = heads(t["dt"][..., None], count)
        return {
            "q": heads(t["C"], count),
            "k": heads(t["B"], count),
            "v": d * heads(t["x"], count),
            "log": d * t["A"].repeat(t["x"].shape[0])[:, None, None],
            "state": t["initial_states"].flatten(0, 1).mT,
        }
    count = t["v"].shape[2]
    read = t["r" if name == "rwkv6" else "q"]
    found = {
        "q": heads(cast(read * read.shape[3] ** -0.5), count),
        "k": heads(t["k"], count),
        "v": heads(t["v"], count),
        "state": t["initial_state"].flatten(0, 1),
    }
    if name in ("gla", "rwkv6"):
        return found | {"log": heads(t["gk" if name == "gla" else "w"], count)}
    if name == "simple_gla":
        return found | {"log": heads(t["g"][..., None], count)}
    log = torch.zeros(count)
    if name == "retention":
        log = (1 - 2.0 ** (-5 - torch.arange(count))).log()
    batch, steps = t["v"].shape[:2]
    return found | {"log": log.repeat(batch)[:, None, None].expand(-1, steps, 1)}


def outputs_of(name: str, o: Tensor, state: Tensor, heads: int) -> dict[str, Tensor]:
    """The op's outputs in its layout."""
    first, second = (spec.name for spec in OPS[name].outputs)
    o = o.unflatten(0, (-1, heads)).transpose(1, 2)
    state = (state.mT if name == "ssd" else state).unflatten(0, (-1, heads))
    return {first: o, second: state}


def computed(
    name: str,
    form: str,
    unit: Unit,
    size: int,
    tensors: Arrays,
    bars: Arrays | None = None,
    *,
    written_out: bool = False,
    change: Callable[[list[Chunk]], list[Chunk]] | None = None,
    kept: Format | None = None,
) -> Arrays:
    """Outputs and, of cotangents, gradients before they are stored."""
    leaves = {n: torch.tensor(x, dtype=torch.float32) for n, x in tensors.items()}
    for leaf in leaves.values():
        leaf.requires_grad_(bars is not None)
    parts = normal_form(name, leaves, unit.cast)
    given = {n: x.detach() for n, x in parts.items()} if written_out else parts
    chunks = split(unit, form, size, *(given[n] for n in ("q", "k", "v", "log")))
    if name == "rwkv6":
        u = leaves["u"].repeat(tensors["v"].shape[0], 1)[:, None]
        chunks = [replace(one, u=u) for one in chunks]
    if change is not None:
        chunks = change(chunks)
    o, last, states = forward(chunks, given["state"], kept)
    count = tensors["x" if name == "ssd" else "v"].shape[2]
    found = outputs_of(name, o, last, count)
    if bars is not None:
        ybar = {n: torch.tensor(x, dtype=torch.float32) for n, x in bars.items()}
        results, seeds = list(found.values()), [ybar[n] for n in found]
        if written_out:
            do, bar = (ybar[spec.name] for spec in OPS[name].outputs)
            bar = (bar.mT if name == "ssd" else bar).flatten(0, 1)
            slopes = backward(chunks, states, last, heads(do, count), bar)
            if parts["log"].shape[2] == 1:
                slopes["log"] = slopes["log"].sum(2, keepdim=True)
            graph = [n for n in slopes if parts[n].requires_grad]
            results, seeds = [parts[n] for n in graph], [slopes[n] for n in graph]
        grads = torch.autograd.grad(results, list(leaves.values()), seeds)
        found |= dict(zip(leaves, grads, strict=True))
    return {n: x.detach().double().numpy() for n, x in found.items()}


def contract_of(name: str, form: str, size: int, operands: str) -> Contract:
    """What a chunk kernel of this form declares."""
    log = "none" if name == "linear_attention" else LOGS[form]
    return Contract(
        structure=Structure(kind="chunk", chunk=size),
        log=log,
        # So is the gradient of a running sum, written out or not.
        gate_gradient="reverse_cumsum",
        operands=operands,
    )


def worst(
    name: str,
    got: Arrays,
    tensors: Arrays,
    contract: Contract,
    dtype: str,
    bars: Arrays | None = None,
    *,
    excused: bool = False,
) -> dict[str, float]:
    """The largest error of each tensor in units of its budget.

    With `excused` what is not finite may be so where the budget says that operands may
    leave their range; without it nothing may.
    """
    op = OPS[name]
    budget = budget_for(op, tensors, {}, contract, dtype, bars)
    truth = solve(Fp64System(), op, tensors, {}, bars)
    allowed = budget.outputs | budget.gradients
    ratios = {}
    for tensor, ball in {**truth.outputs, **truth.gradients}.items():
        if tensor not in got:
            continue
        stored = got[tensor]
        if allowed[tensor].storage_u > FP32.unit_roundoff:
            stored = round_array(FORMATS[dtype], stored)
        error = np.abs(stored - ball.value) - certified_radius(ball)
        bound = allowed[tensor].error
        if not excused:
            assert not allowed[tensor].overflows.any(), tensor
        beyond = np.abs(ball.value) + bound >= allowed[tensor].largest
        may_be_lost = excused & (allowed[tensor].overflows | beyond)
        error = np.where(np.isfinite(stored) | ~may_be_lost, error, 0.0)
        ratios[tensor] = float((error / bound).max())
    return ratios


def rhos(
    name: str, got: Arrays, tensors: Arrays, contract: Contract, dtype: str
) -> dict[str, float]:
    """rho of each output."""
    op = OPS[name]
    root = moments_for(op, tensors, {}, contract, dtype)
    assert root is not None
    truth = solve(Fp64System(), op, tensors, {})
    found = {}
    for spec in op.outputs:
        stored = got[spec.name]
        if spec.kind == "storage":
            stored = round_array(FORMATS[dtype], stored)
        error = stored - truth.outputs[spec.name].value
        found[spec.name] = rho(error, root[spec.name])
    return found


def formats(operands: str) -> tuple[Format, str]:
    """The operands' format, and that of a case which has them."""
    if operands == "tf32":
        return TF32, "fp32"
    return FORMATS[operands], operands


def fitting(form: str, size: int, gate: str) -> float:
    """Mean decay a token; factored forms cannot have strong ones in fp16."""
    return min(GATES[gate], 4.0 / size) if form == "factored" else GATES[gate]


@pytest.mark.parametrize(("name", "form"), CASES)
@pytest.mark.parametrize("operands", ["bf16", "fp16", "tf32"])
@pytest.mark.parametrize(
    ("size", "gate"), [(16, "slow"), (16, "strong"), (64, "usual")]
)
def test_outputs_stay_within_the_budget_and_rho_within_its_limit(
    name: str, form: str, operands: str, size: int, gate: str
) -> None:
    """Every element, summed to nearest and truncated; and the bound is not idle."""
    fmt, stored = formats(operands)
    contract = contract_of(name, form, size, operands)
    tensors = drawn(name, STEPS[size], stored, fitting(form, size, gate), seed=1)
    for truncates in (False, True):
        if truncates:
            contract = replace(contract, accumulate="truncate")
        got = computed(name, form, Unit(fmt, truncates), size, tensors)
        ratios = worst(name, got, tensors, contract, stored)
        assert 0.05 < max(ratios.values()) <= 1.0, ratios
        found = rhos(name, got, tensors, contract, stored)
        assert max(found.values()) < 1.3, found
        first = OPS[name].outputs[0].name
        assert found[first] > 0.4, found


@pytest.mark.parametrize(("name", "form", "written_out"), PASSES)
@pytest.mark.parametrize("operands", ["bf16", "fp16", "tf32"])
@pytest.mark.parametrize(("size", "gate"), [(16, "strong"), (64, "usual")])
def test_gradients_stay_within_the_budget(
    name: str, form: str, operands: str, size: int, gate: str, written_out: bool
) -> None:
    """Of both backward passes, through the final state too."""
    fmt, stored = formats(operands)
    contract = contract_of(name, form, size, operands)
    tensors = drawn(name, STEPS[size], stored, fitting(form, size, gate), seed=2)
    bars = drawn_bars(name, tensors, stored, seed=2)
    got = computed(name, form, Unit(fmt), size, tensors, bars, written_out=written_out)
    ratios = worst(name, got, tensors, contract, stored, bars)
    assert ratios.keys() == {*tensors, *bars}
    assert 0.05 < max(ratios.values()) <= 1.0, ratios


@pytest.mark.parametrize(("name", "form", "written_out"), PASSES)
@pytest.mark.parametrize("operands", ["bf16", "tf32"])
def test_an_adversary_who_rounds_all_operands_one_way_is_within_the_budget(
    name: str, form: str, operands: str, written_out: bool
) -> None:
    """Of positive terms, which then lose nothing to chance; and comes near it."""
    fmt, stored = formats(operands)
    contract = contract_of(name, form, 16, operands)
    tensors = {
        n: x if n in ("g", "gk", "A") else np.abs(x)
        for n, x in drawn(name, 40, stored, 0.1, seed=3).items()
    }
    bars = {n: np.abs(x) for n, x in drawn_bars(name, tensors, stored, 3).items()}
    unit = Unit(fmt, adversarial=True)
    got = computed(name, form, unit, 16, tensors, bars, written_out=written_out)
    ratios = worst(name, got, tensors, contract, stored, bars)
    assert max(ratios.values()) <= 1.0, ratios
    # An adversary of one bit is off by u / 2 on average.
    assert ratios[OPS[name].outputs[0].name] > 0.3


def short_gates(chunks: list[Chunk]) -> list[Chunk]:
    """Running sums of log decays kept in bf16."""
    return [replace(one, c=rounded(one.c, BF16)) for one in chunks]


def found_by(
    name: str, got: Arrays, tensors: Arrays, contract: Contract, dtype: str
) -> set[str]:
    """Which of budget and rho a computation breaks."""
    ratios = worst(name, got, tensors, contract, dtype)
    first = got[OPS[name].outputs[0].name]
    limit = rho_limit(first.size // first.shape[1])
    found = {"budget"} if max(ratios.values()) > 1.0 else set()
    if max(rhos(name, got, tensors, contract, dtype).values()) > limit:
        found.add("rho")
    return found


GATED = [case for case in CASES if case[0] != "linear_attention"]


@pytest.mark.parametrize(("name", "form"), GATED)
@pytest.mark.parametrize("operands", ["bf16", "fp16"])
def test_running_gates_in_bf16_are_seen(name: str, form: str, operands: str) -> None:
    """Where the gates of a chunk add up to a few units: relative errors of u |c|."""
    fmt, stored = formats(operands)
    contract = contract_of(name, form, 64, operands)
    gate = {"ssd": 0.6, "gla": 0.06, "rwkv6": 0.06}.get(name, 0.3)
    tensors = drawn(name, 256, stored, gate, seed=4)
    right, wrong = (
        computed(name, form, Unit(fmt), 64, tensors, change=change)
        for change in (None, short_gates)
    )
    assert not found_by(name, right, tensors, contract, stored)
    seen = found_by(name, wrong, tensors, contract, stored)
    # Retention's own decays are so slow that c stays below 2 within a chunk.
    assert seen or (name, operands) == ("retention", "bf16"), seen


@pytest.mark.parametrize(("name", "form"), CASES)
@pytest.mark.parametrize("operands", ["bf16", "fp16"])
def test_a_state_in_bf16_at_chunk_edges_is_seen(
    name: str, form: str, operands: str
) -> None:
    """Without decay its budget has no rounding of short operands; slow ones add up."""
    fmt, stored = formats(operands)
    contract = contract_of(name, form, 16, operands)
    gate = 0.002 if name == "ssd" else 0.0
    tensors = drawn(name, 256, stored, gate, seed=4)
    right, wrong = (
        computed(name, form, Unit(fmt), 16, tensors, kept=kept) for kept in (None, BF16)
    )
    assert not found_by(name, right, tensors, contract, stored)
    seen = found_by(name, wrong, tensors, contract, stored)
    # Four heads of retention remember 16 chunks at most: rho is 2.6, within the limit.
    assert seen or (name, operands) == ("retention", "bf16")
    declared = replace(contract, state="bf16", state_every=16)
    assert not found_by(name, wrong, tensors, declared, stored)


@pytest.mark.parametrize(("name", "form"), CASES)
@pytest.mark.parametrize("operands", ["bf16", "fp16", "tf32"])
def test_short_operands_fail_where_none_are_declared(
    name: str, form: str, operands: str
) -> None:
    """The same outputs under operands=compute."""
    fmt, stored = formats(operands)
    tensors = drawn(name, STEPS[16], stored, 0.1, seed=5)
    got = computed(name, form, Unit(fmt), 16, tensors)
    declared = contract_of(name, form, 16, operands)
    assert max(worst(name, got, tensors, declared, stored).values()) <= 1.0
    plain = replace(declared, operands="compute")
    assert max(worst(name, got, tensors, plain, stored).values()) > 5.0


def scaled(tensors: Arrays, power: float, *names: str) -> Arrays:
    """Some tensors times a power of two, and rounded again where that is subnormal."""
    return {n: x * 2.0**power if n in names else x for n, x in tensors.items()}


@pytest.mark.parametrize("form", ["factored", "two_level"])
@pytest.mark.parametrize("operands", ["bf16", "fp16"])
@pytest.mark.parametrize("gate", [0.5, 2.0, 12.0])
def test_operands_below_their_range_are_within_the_budget(
    form: str, operands: str, gate: float
) -> None:
    """Strong decays, whose factored exponentials leave fp16, and then bf16, upwards."""
    fmt, stored = formats(operands)
    contract = contract_of("gla", form, 16, operands)
    tensors = drawn("gla", 40, stored, gate, seed=6)
    bars = drawn_bars("gla", tensors, stored, seed=6)
    factored = form == "factored"
    above = factored and gate * 16 > 2 * np.log(fmt.largest)
    for written_out in (False, True):
        got = computed(
            "gla", form, Unit(fmt), 16, tensors, bars, written_out=written_out
        )
        lost = any(not np.isfinite(x).all() for x in got.values())
        assert lost or not above
        assert factored or not lost
        ratios = worst("gla", got, tensors, contract, stored, bars, excused=factored)
        assert max(ratios.values()) <= 1.0, ratios


@pytest.mark.parametrize(("name", "form"), CASES)
@pytest.mark.parametrize(
    ("operands", "power"), [("fp16", -12), ("fp16", -18), ("bf16", -128)]
)
def test_subnormal_operands_are_within_the_budget(
    name: str, form: str, operands: str, power: int
) -> None:
    """Keys or values below the normal range, the initial state as it was."""
    fmt, stored = formats(operands)
    contract = contract_of(name, form, 16, operands)
    for which in ("k", "v"):
        names = {"k": ("k", "B"), "v": ("v", "x")}[which]
        tensors = scaled(drawn(name, 40, stored, 0.1, seed=7), power, *names)
        tensors = {
            n: round_array(fmt, x) if n in names else x for n, x in tensors.items()
        }
        bars = drawn_bars(name, tensors, stored, seed=7)
        got = computed(name, form, Unit(fmt), 16, tensors, bars)
        ratios = worst(name, got, tensors, contract, stored, bars)
        assert max(ratios.values()) <= 1.0, ratios


@pytest.mark.parametrize("form", ["factored", "two_level"])
def test_growing_decays_multiply_what_small_operands_lose(form: str) -> None:
    """Keys below the normal range of fp16 that later decays make large again."""
    tensors = drawn("gla", 40, "fp16", 0.1, seed=9)
    tensors["gk"] = -tensors["gk"]
    tensors["k"] = round_array(FP16, tensors["k"] * 2.0**-16)
    bars = drawn_bars("gla", tensors, "fp16", seed=9)
    contract = contract_of("gla", form, 16, "fp16")
    for written_out in (False, True):
        got = computed(
            "gla", form, Unit(FP16), 16, tensors, bars, written_out=written_out
        )
        ratios = worst("gla", got, tensors, contract, "fp16", bars)
        assert max(ratios.values()) <= 1.0, ratios


@pytest.mark.parametrize("name", ["gla", "ssd", "rwkv6"])
def test_budgets_do_not_depend_on_how_time_is_tiled(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is carried from tile to tile forwards and backwards is all there is."""
    form = "masked" if name == "ssd" else "factored"
    contract = contract_of(name, form, 16, "fp16")
    tensors = drawn(name, 50, "fp16", 0.1, seed=10)
    bars = drawn_bars(name, tensors, "fp16", seed=10)
    found = []
    for entries in (2**19, 2**13):
        monkeypatch.setattr("scancheck.oracles.engine.TILE_ENTRIES", entries)
        budget = budget_for(OPS[name], tensors, {}, contract, "fp16", bars)
        found.append(budget.outputs | budget.gradients)
    for tensor, whole in found[0].items():
        tiled = found[1][tensor]
        assert np.allclose(whole.error, tiled.error, rtol=1e-9, atol=0.0), tensor
        assert (whole.overflows == tiled.overflows).all(), tensor


@pytest.mark.parametrize(("name", "form"), CASES)
def test_operands_above_the_range_of_fp16_are_foretold(name: str, form: str) -> None:
    """States beyond 65504 in fp32 are infinite as operands of fp16, and excused."""
    contract = contract_of(name, form, 16, "fp16")
    names = ("k", "v", "B", "x")
    tensors = scaled(drawn(name, 40, "fp16", 0.01, seed=8), 7, *names)
    if name == "ssd":
        tensors = scaled(tensors, 6, "dt")
        tensors = scaled(tensors, -6, "A")
    got = computed(name, form, Unit(FP16), 16, tensors)
    first = OPS[name].outputs[0].name
    assert not np.isfinite(got[first]).all()
    ratios = worst(name, got, tensors, contract, "fp16", excused=True)
    assert max(ratios.values()) <= 1.0, ratios
    # The same in bf16 stays in range.
    tensors = {n: round_array(BF16, x) for n, x in tensors.items()}
    got = computed(name, form, Unit(BF16), 16, tensors)
    contract = replace(contract, operands="bf16")
    assert max(worst(name, got, tensors, contract, "bf16").values()) <= 1.0


@pytest.mark.parametrize("size", [16, 64])
def test_truncated_sums_alone_have_a_budget_and_rho(size: int) -> None:
    """fp32 operands: the bias of sums that are cut off, which none to nearest have."""
    name = "linear_attention"
    tensors = drawn(name, STEPS[size], "fp32", 0.0, seed=11)
    got = computed(name, "masked", Unit(FP32, truncates=True), size, tensors)
    nearest = contract_of(name, "masked", size, "compute")
    truncate = replace(nearest, accumulate="truncate")
    for contract in (nearest, truncate):
        found = rhos(name, got, tensors, contract, "fp32")
        within = max(found.values()) < 1.3
        assert within == (contract is truncate), found
    ratios = worst(name, got, tensors, truncate, "fp32")
    assert 0.01 < max(ratios.values()) <= 1.0, ratios


@pytest.mark.parametrize(
    ("name", "contract", "words"),
    [
        (
            "linear_scan",
            Contract(operands="bf16"),
            "operands=bf16: expected an op with",
        ),
        ("selective_scan", Contract(operands="storage"), "got selective_scan"),
        (
            "linear_scan",
            Contract(accumulate="truncate"),
            "accumulate=truncate: expected",
        ),
        ("delta_rule", Contract(operands="bf16"), "an op whose transition is diagonal"),
        (
            "gla",
            Contract(operands="bf16", structure=Structure(kind="sequential")),
            "expected structure=unknown, tree or .* got structure=sequential",
        ),
        (
            "gla",
            Contract(
                operands="bf16", structure=Structure(kind="tree", order="hillis_steele")
            ),
            "got structure=tree in the order hillis_steele",
        ),
        ("gla", Contract(operands="bf16", log="full"), "got log=full"),
        ("gla", Contract(operands="bf16", log="ratio"), "got log=ratio"),
        ("gla", Contract(operands="bf16", comp="kahan"), "got comp=kahan"),
    ],
)
def test_contracts_without_a_matrix_product_are_refused(
    name: str, contract: Contract, words: str
) -> None:
    """The message names the key, what was expected and what came."""
    with pytest.raises(CaseInvalid, match=words):
        budget_for(OPS[name], {}, {}, contract, "bf16")
