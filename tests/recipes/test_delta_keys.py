"""The hazards of the delta rule are in the tensors of every op that has it."""

import numpy as np
import pytest
from drawn_heads import CHUNK, DELTA_OPS, head_case, head_tensors, states_and_outputs

from scancheck.formats import FORMATS, FloatArray
from scancheck.recipes import build
from scancheck.recipes.delta_keys import simplex

EVERY_OP = pytest.mark.parametrize("op", DELTA_OPS)
# Whose states are known after each step, and not after several.
STEP_OPS = [op for op in DELTA_OPS if op != "gated_delta_product"]
EVERY_STEP = pytest.mark.parametrize("op", STEP_OPS)
ROUNDED = 2.0**-20  # of fp32 keys of length 1


def keys_and_beta(recipe: str, op: str, **about: object) -> tuple[FloatArray, ...]:
    """Keys [B, T, H, K] and strengths [B, T, HV]; those of rwkv7 from a and b.

    Several steps of a token are one behind the other.
    """
    made = head_tensors(recipe, op, **about)
    if op == "gated_delta_product":
        return tuple(
            made[n].reshape(len(made[n]), -1, *made[n].shape[3:]) for n in ("k", "beta")
        )
    if op != "rwkv7":
        return made["k"], made["beta"]
    keys = -made["a"]
    size = (keys * keys).sum(-1)
    return keys, (made["b"] * keys).sum(-1) / size


@EVERY_OP
def test_default_keys_contract(op: str) -> None:
    """Keys have length 1 and strengths lie in (0, 1), so that no step can grow."""
    keys, beta = keys_and_beta("gaussian_slow", op)
    assert np.abs(np.linalg.norm(keys, axis=-1) - 1.0).max() < ROUNDED
    assert 0.0 < beta.min() < beta.max() < 1.0


@EVERY_OP
def test_repeated_keys(op: str) -> None:
    """One key per chunk, another in the next; all four strengths by row and head."""
    keys, beta = keys_and_beta("repeated_keys", op, steps=8 * CHUNK + 5)
    size = keys.shape[1] // (8 * CHUNK + 5) * CHUNK  # chunks are of tokens
    for start in range(0, keys.shape[1], size):
        chunk = keys[:, start : start + size]
        assert (chunk == chunk[:, :1]).all()
    assert (keys[:, size] != keys[:, 0]).any(axis=-1).all()
    found = np.unique(np.round(beta, 6))
    assert np.allclose(found, [0.5, 1.0, 1.98, 2.0], rtol=0, atol=1e-5)


@EVERY_OP
def test_correlated_keys(op: str) -> None:
    """Keys close to one, of rank two, or positive: all three over rows and heads."""
    keys, _ = keys_and_beta("correlated_keys", op)
    kinds = set()
    for row in range(2):
        for head in range(keys.shape[2]):
            k = keys[row, :, head]
            values = np.linalg.svd(k, compute_uv=False)
            if (k > 0.0).all():
                kinds.add("positive")
            elif values[2] < 1e-4 * values[0]:
                kinds.add("plane")
            elif (k @ k.mean(0)).min() > 0.5:
                kinds.add("near")
    assert kinds == {"positive", "plane", "near"}


@EVERY_STEP
def test_orthogonal_keys_recall_what_was_written(op: str) -> None:
    """Beyond K tokens the state holds the last K values, one under each key."""
    inputs = build(head_case("orthogonal_keys_wrap", op, steps=30))
    states, _ = states_and_outputs(op, inputs)
    keys, _ = keys_and_beta("orthogonal_keys_wrap", op, steps=30)
    width = keys.shape[-1]
    assert (np.abs(keys).sum(-1) == 1.0).all()
    shared = states.shape[2] // keys.shape[2]
    for token in range(30 - width, 30):
        k = np.repeat(keys[:, token], shared, axis=1)
        recalled = (states[-1] * k[..., None]).sum(2)
        assert np.array_equal(recalled, inputs.tensors["v"][:, token])


@EVERY_OP
def test_opposite_keys(op: str) -> None:
    """k, -k, ... in some heads, corners of a simplex in others."""
    keys, beta = keys_and_beta("opposite_keys", op)
    width = keys.shape[-1]
    products = (keys[:, 0] * keys[:, 1]).sum(-1)
    assert np.isclose(products, -1.0, rtol=0, atol=ROUNDED).any()
    assert np.isclose(products, -1.0 / width, rtol=0, atol=ROUNDED).any()
    assert 1.0 <= beta.min() < beta.max() <= 2.0 + ROUNDED


@pytest.mark.parametrize("dimension", [1, 2, 3, 7, 64])
def test_a_simplex_is_regular(dimension: int) -> None:
    """Corners have length 1 and products of -1 / dimension."""
    gram = simplex(dimension) @ simplex(dimension).T
    want = np.full_like(gram, -1.0 / dimension)
    np.fill_diagonal(want, 1.0)
    assert np.abs(gram - want).max() < 64 * 2.0**-52


@EVERY_OP
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_beta_edges(op: str, dtype: str) -> None:
    """Nothing, next to nothing, a projection, nearly a mirror, a mirror."""
    _, beta = keys_and_beta("beta_edges", op, dtype=dtype)
    if op != "rwkv7":
        edges = {0.0, 2.0**-20, 1.0, 2.0 - 2.0**-8, 2.0}
        stored = edges if dtype == "fp32" else {*edges, 2.0} - (
            {2.0 - 2.0**-8} if dtype == "bf16" else set())  # fmt: skip
        assert set(np.unique(beta)) == stored
    for edge in (0.0, 1.0, 2.0):
        assert (np.abs(beta - edge) < 0.01).any()


@EVERY_OP
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_unnormalised_keys(op: str, dtype: str) -> None:
    """All strengths come up, and the state grows, to a limit: 2**20, or 4 in fp16."""
    keys, beta = keys_and_beta("unnormalised_keys", op, dtype=dtype, steps=600)
    shared = beta.shape[2] // keys.shape[2]
    strength = beta * np.repeat((keys * keys).sum(-1), shared, axis=-1)
    for wanted in (1.9, 2.0, 2.004, 2.1):
        assert (np.abs(strength - wanted) < 0.0015).any()
    growth = np.log2(np.maximum(strength - 1.0, 1.0)).sum(1).max()
    assert 1.0 < growth < (20.2 if dtype == "fp32" else 2.2)
    assert (strength[:, -1].max() < 2.005) or dtype == "fp32"


@EVERY_STEP
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("initial_state", [True, False])
def test_converged_state(op: str, dtype: str, initial_state: bool) -> None:
    """After the first tokens a value is what the state gives, save a small rest."""
    given, bare = (
        build(
            head_case("converged_state", op, dtype=dtype, steps=80, initial_state=kept)
        )
        for kept in (True, False)
    )
    inputs = given if initial_state else bare
    zeros = np.zeros_like(given.tensors["initial_state"])
    inputs.tensors.setdefault("initial_state", zeros)
    states, _ = states_and_outputs(op, inputs)
    keys, _ = keys_and_beta("converged_state", op, dtype=dtype, steps=80)
    keys = np.repeat(keys, states.shape[2] // keys.shape[2], axis=2)
    late = slice(2 * keys.shape[-1], 80)
    known = (states[:-1] * keys[:, 1:].swapaxes(0, 1)[..., None]).sum(3)
    values = inputs.tensors["v"][:, 1:].swapaxes(0, 1)
    rest = np.abs(values - known)[late]
    rounding = FORMATS[dtype].unit_roundoff * 2.0**4
    assert rest.max() < 2.0**-8 + rounding
    assert np.abs(values[late]).max() > 0.5
    assert (rest > 0.0).mean() > 0.9
