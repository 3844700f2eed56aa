"""Recipes on the ops with heads: ranges, exactness, and where gates come from."""

import hashlib

import numpy as np
import pytest
from drawn_heads import (
    CHUNK,
    DELTA_OPS,
    HEAD_OPS,
    HEAD_RECIPES,
    decay_of,
    head_case,
    head_tensors,
    states_and_outputs,
)

from scancheck.case import make_case
from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS, round_array
from scancheck.recipes import RECIPES, build

EVERY = pytest.mark.parametrize(("recipe", "op"), HEAD_RECIPES)
EXACT = [(recipe, op) for recipe, op in HEAD_RECIPES if RECIPES[recipe].exact]
GATED = [op for recipe, op in HEAD_RECIPES if recipe == "decay_near_one"]

DIGESTS = {
    "gated_delta_product": "1d674a257a2f4462",
    "normalized_linear_attention": "233a317c70c74995",
    "linear_attention": "b62e77b46f14ad98",
    "simple_gla": "ceddd57864b5d567",
    "retention": "1fb28005fde9935d",
    "lightning_attention": "3ba001f7892adf07",
    "gla": "2bfd6937b1d491cf",
    "rwkv6": "3d26f457cc7ab86c",
    "ssd": "14d1edc774724f11",
    "delta_rule": "b1fa329fce4016d4",
    "gated_delta_rule": "2d45a8c3fa7761c9",
    "kda": "29b3d8c91b65fb36",
    "rwkv7": "30253f59bbfe1ac8",
}


def test_ops_without_gates_have_no_recipes_of_gates() -> None:
    """Those of drives and states are for every op, those of keys for the delta rule."""
    for op in HEAD_OPS:
        names = {recipe for recipe, of in HEAD_RECIPES if of == op}
        assert {"gaussian_slow", "impulse_at_chunk_edge", "large_first_state"} <= names
        assert ("exact_reset" in names) == (op in GATED)
        assert ("repeated_keys" in names) == (op in DELTA_OPS)
    assert set(HEAD_OPS) - set(GATED) == {
        "linear_attention",
        "normalized_linear_attention",
        "retention",
        "lightning_attention",
        "delta_rule",
    }


@EVERY
def test_states_stay_in_the_range_of_fp16(recipe: str, op: str) -> None:
    """Over 600 tokens no state, nor the product of two, comes near fp16's largest."""
    inputs = build(head_case(recipe, op, dtype="fp16", steps=600))
    states, outputs = states_and_outputs(op, inputs)
    largest = FORMATS["fp16"].largest
    assert float(np.abs(states).max()) ** 2 < largest
    assert float(np.abs(outputs).max()) < largest


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("recipe", "op"), EXACT)
def test_exact_recipes_stay_within_eight_bits(recipe: str, op: str, seed: int) -> None:
    """States and outputs are small integers, the latter over a power of two."""
    inputs = build(head_case(recipe, op, steps=300, seed=seed))
    states, outputs = states_and_outputs(op, inputs)
    bf16 = FORMATS["bf16"]
    for values in (states, outputs, 2.0 * outputs):
        assert np.array_equal(values, round_array(bf16, values))
    assert np.array_equal(states, np.rint(states))
    assert np.array_equal(2.0 * outputs, np.rint(2.0 * outputs))
    assert np.abs(outputs).max() > 1.0


@pytest.mark.parametrize("op", HEAD_OPS)
def test_the_bits_are_those_of_the_last_release(op: str) -> None:
    """A stored case rebuilds the tensors that it was found with.

    After a deliberate change of a recipe, say so in the changelog and renew these.
    """
    total = hashlib.sha256()
    for recipe in (recipe for recipe, of in HEAD_RECIPES if of == op):
        for dtype in ("fp64", "bf16"):
            made = build(head_case(recipe, op, dtype=dtype))
            for name, values in made.tensors.items():
                total.update(name.encode() + values.tobytes())
    assert total.hexdigest()[:16] == DIGESTS[op]


@pytest.mark.parametrize("op", GATED)
def test_gates_carry_their_hazards(op: str) -> None:
    """Unit decays are 1, resets 0, and heads differ in where a strong gate stands."""
    unit = build(head_case("unit_decay", op))
    assert (np.asarray(decay_of(op, unit, 3)) == 1.0).all()
    reset = build(head_case("exact_reset", op))
    every = np.stack([decay_of(op, reset, t) for t in range(8 * CHUNK)])
    assert (every == 0.0).any()
    assert (every > 0.7).any()
    strong = build(head_case("one_strong_gate_per_chunk", op))
    decays = np.stack([decay_of(op, strong, t) for t in range(4 * CHUNK)])
    places = {
        tuple(np.flatnonzero(decays[:, 0, head, 0, 0] < 1e-20))
        for head in range(decays.shape[2])
    }
    # The first two of four places are steps of the same token.
    assert len(places) == decays.shape[2] - (op == "gated_delta_product")
    assert all(len(place) == 4 for place in places)


@pytest.mark.parametrize("op", HEAD_OPS)
def test_a_first_state_of_every_size(op: str) -> None:
    """large_first_state has lanes of 1e4, of zeros and of ordinary size."""
    made = head_tensors("large_first_state", op)
    state = made["initial_states" if op == "ssd" else "initial_state"]
    state = state if op == "ssd" else state.transpose(0, 1, 3, 2)
    sizes = np.abs(state).max(-1)
    assert (sizes > 5e3).any()
    assert (sizes == 0.0).any()
    assert ((sizes > 0.4) & (sizes < 1.0)).any()


def test_an_exact_recipe_needs_a_root_that_is_exact() -> None:
    """K = 8 scales by 8**-0.5, which rounds; rwkv7 and ssd do not scale."""
    sizes = {"B": 1, "T": 20, "H": 1, "K": 8, "V": 2}
    with pytest.raises(
        CaseInvalid, match=r"exact_dyadic: expected a power of 4.* K.*8"
    ):
        build(make_case("gla", sizes, recipe="exact_dyadic", seed=0))
    build(make_case("rwkv7", sizes, recipe="exact_dyadic", seed=0))
    build(make_case("gla", sizes | {"K": 16}, recipe="exact_dyadic", seed=0))


@pytest.mark.parametrize(
    ("op", "sizes", "words"),
    [
        (
            "delta_rule",
            {"H": 2, "HV": 3},
            "size H: expected a divisor of HV = 3; got 2",
        ),
        ("ssd", {"H": 3, "G": 2}, "size G: expected a divisor of H = 3; got 2"),
        ("kda", {"H": 2}, "size HV is missing; kda has B, T, H, HV, K, V"),
        ("rwkv6", {"H": 2, "D": 2}, "size 'D' is unknown for rwkv6"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    op: str, sizes: dict[str, int], words: str
) -> None:
    """The message names the size, what was expected and what came."""
    rest = {"P": 3, "N": 2} if op == "ssd" else {"K": 3, "V": 2}
    case = make_case(
        op, {"B": 1, "T": 4, **rest, **sizes}, recipe="gaussian_slow", seed=0
    )
    with pytest.raises(CaseInvalid, match=words):
        build(case)


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16"])
def test_little_is_left_of_a_normaliser(dtype: str) -> None:
    """Shares of z . q are 1 down to what a format's rounding leaves, all positive."""
    op = "normalized_linear_attention"
    made = head_tensors("cancelling_normaliser", op, dtype=dtype)
    heads = np.repeat(np.arange(2), 2)
    sums = made["k"].cumsum(1)[:, :, heads] + made["initial_key_sum"][:, None]
    terms = sums * made["q"][:, :, heads]
    share = terms.sum(-1) / np.abs(terms).sum(-1)
    assert float(share.max()) > 0.9
    assert float(share.min()) > 0.0
    assert float(share.min()) < max(2.0**-9, 16.0 * FORMATS[dtype].unit_roundoff)


def test_a_feature_map_is_positive() -> None:
    """Without keys of a recipe's own the normaliser is a sum of positive terms."""
    made = head_tensors("gaussian_slow", "normalized_linear_attention")
    assert all((made[name] > 0.0).all() for name in ("q", "k", "initial_key_sum"))


def test_a_token_decays_by_all_its_steps() -> None:
    """gated_delta_product has the gates of gated_delta_rule, summed over a token."""
    made = head_tensors("mixed_time_scales", "gated_delta_product", dtype="fp64")
    assert made["k"].shape == (2, 8 * CHUNK + 5, 2, 3, 5)
    assert made["q"].shape == (2, 8 * CHUNK + 5, 3, 5)
    assert made["g"].shape == (2, 8 * CHUNK + 5, 3)
    assert float(made["g"].max()) <= 0.0
    lengths = np.sqrt((made["k"] ** 2).sum(-1))
    assert np.abs(lengths - 1.0).max() < 1e-12


def test_both_branches_of_an_mlstm_are_met() -> None:
    """Ordinary gates meet either side of m, and either side of the denominator."""
    sizes = {"B": 2, "T": 150, "H": 3, "K": 5, "V": 3}
    case = make_case("mlstm", sizes, recipe="mixed_time_scales", seed=1)
    made = build(case).tensors
    forget = -np.logaddexp(0.0, -made["f"])
    m, n = np.zeros((2, 3)), np.zeros((2, 3, 5))
    kept, read = [], []
    for t in range(150):
        new = np.maximum(forget[:, t] + m, made["i"][:, t])
        kept.append(forget[:, t] + m > made["i"][:, t])
        n = np.exp(forget[:, t] + m - new)[..., None] * n
        n = n + np.exp(made["i"][:, t] - new)[..., None] * made["k"][:, t]
        m = new
        size = np.abs((n * made["q"][:, t]).sum(-1)) / 5**0.5
        read.append(size > np.exp(-m))
    for met in (np.array(kept), np.array(read)):
        assert 0.05 < met.mean() < 0.95
        assert np.isfinite(m).all()


@pytest.mark.parametrize(("dtype", "largest"), [("fp32", 88.7), ("fp64", 709.7)])
def test_large_input_gates_leave_the_range(dtype: str, largest: float) -> None:
    """Their exponentials overflow, while m stays above what its floor can hold."""
    sizes = {"B": 1, "T": 150, "H": 2, "K": 3, "V": 2}
    case = make_case("mlstm", sizes, dtype=dtype, recipe="large_input_gates", seed=1)
    made = build(case).tensors
    assert made["i"].max() > largest
    assert made["i"].min() < -largest
    m = np.maximum.accumulate(made["i"], 1)
    assert float((m - np.logaddexp(0.0, -made["f"]).cumsum(1)).min()) > -largest


@pytest.mark.parametrize(("dtype", "range_"), [("fp32", 88.7), ("fp64", 709.7)])
def test_deep_forget_gates_keep_the_state(dtype: str, range_: float) -> None:
    """Their sigmoids are zero in the format, and m follows them within its range."""
    sizes = {"B": 1, "T": 150, "H": 2, "K": 3, "V": 2}
    case = make_case("mlstm", sizes, dtype=dtype, recipe="deep_forget_gates", seed=1)
    made = build(case).tensors
    deep = made["f"] < -range_ - 16.0
    assert 0.1 < deep.mean() < 0.15
    m = made["i"][:, 0]
    for t in range(1, 150):
        kept = -np.logaddexp(0.0, -made["f"][:, t]) + m
        assert (kept > made["i"][:, t])[deep[:, t]].all()
        m = np.maximum(kept, made["i"][:, t])
        assert (np.abs(m) < range_).all()


def test_input_gates_reach_no_op_without_them() -> None:
    """A recipe of input gates is for mlstm alone."""
    for recipe in ("large_input_gates", "deep_forget_gates"):
        assert [op for op, _ in RECIPES[recipe].supports] == ["mlstm"]
