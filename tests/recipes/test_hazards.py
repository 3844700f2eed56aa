"""Each recipe really carries the hazard in its name, in every op and form."""

import numpy as np
import pytest
from drawn import (
    CHUNK,
    DTYPES,
    EVERY_FORM,
    FORMS,
    LINEAR_FORMS,
    decays,
    states,
    tensors,
)

from scancheck.formats import FORMATS, round_array
from scancheck.ops import OPS
from scancheck.ops.normal_form import spec_of
from scancheck.recipes import RECIPES


@EVERY_FORM
@DTYPES
def test_unit_decay(op: str, form: str | None, dtype: str) -> None:
    """Every decay is exactly one."""
    assert (decays(tensors("unit_decay", op, form, dtype=dtype)) == 1.0).all()


@EVERY_FORM
@DTYPES
def test_decay_near_one(op: str, form: str | None, dtype: str) -> None:
    """Every decay is below one, by at most 1/4 and in some channel by less than u."""
    made = tensors("decay_near_one", op, form, dtype=dtype)
    if form == "a":
        short = 1.0 - made["a"]
        assert (short > 0.0).all()
    else:
        short = -made["g"] if "g" in made else -made["A"]
        assert (short > 0.0).all()
    assert short.max() <= 0.25
    assert short.min() <= 2.0 ** -min(FORMATS[dtype].precision - 2, 18)


@DTYPES
def test_decay_near_one_is_dyadic(dtype: str) -> None:
    """In form a the distance from one is a power of two, constant in time."""
    short = 1.0 - tensors("decay_near_one", dtype=dtype)["a"]
    assert (np.frexp(short)[0] == 0.5).all()
    assert (short == short[:, :1]).all()


@EVERY_FORM
@DTYPES
def test_decay_near_zero(op: str, form: str | None, dtype: str) -> None:
    """Every decay is tiny but not zero, and half of the drives leave a gap."""
    made = tensors("decay_near_zero", op, form, dtype=dtype)
    kept = decays(made)
    assert (kept > 0.0).all()
    weakest = 2.0**-6.9 if (form, dtype) == ("a", "fp16") else 2.0**-19
    assert kept.max() <= weakest
    if form != "a" or dtype != "fp16":
        assert kept.min() <= 2.0**-80
    drive = made["b"] if op == "linear_scan" else made["u"]
    assert 0.3 < (drive == 0.0).mean() < 0.7


@EVERY_FORM
@DTYPES
def test_exact_reset(op: str, form: str | None, dtype: str) -> None:
    """Resets stand before, on and after chunk edges and elsewhere; the rest is slow."""
    kept = decays(tensors("exact_reset", op, form, dtype=dtype))
    reset = kept == 0.0
    assert kept[~reset].min() > 0.75
    places = set(np.unique(np.nonzero(reset)[1] % CHUNK).tolist())
    assert {CHUNK - 1, 0, 1} < places
    at_edge = (np.nonzero(reset)[1] + 1) % CHUNK <= 2
    assert at_edge.mean() > 0.5
    assert not reset[:, 0].all()


@EVERY_FORM
@DTYPES
def test_mixed_time_scales(op: str, form: str | None, dtype: str) -> None:
    """Rates of one channel spread over many binades, strong and weak alike."""
    made = tensors("mixed_time_scales", op, form, dtype=dtype)
    kept = decays(made)
    assert kept.min() < 0.01
    assert kept.max() > 0.98
    with np.errstate(divide="ignore"):
        binades = np.log2(-np.log(np.clip(kept, 2.0**-1000, 1 - 2.0**-9)))
    assert np.median(binades.std(axis=1)) > 1.5


@EVERY_FORM
@DTYPES
def test_gaussian_slow(op: str, form: str | None, dtype: str) -> None:
    """Much of the first state survives in some chains, hardly any in others."""
    made = tensors("gaussian_slow", op, form, dtype=dtype)
    survives = decays(made).prod(axis=1)
    assert survives.max() > 0.3
    assert survives.min() < 0.05
    assert np.abs(made["initial_state"]).max() > 32.0


@DTYPES
def test_gaussian_slow_keeps_roundings_independent(dtype: str) -> None:
    """No stored decay lies within 4 u of one, save one itself."""
    kept = tensors("gaussian_slow", dtype=dtype)["a"]
    short = 1.0 - kept[kept < 1.0]
    assert short.size
    assert short.min() >= 4 * FORMATS[dtype].unit_roundoff


@EVERY_FORM
@DTYPES
@pytest.mark.parametrize("seed", range(4))
def test_telescoping_cancellation(
    op: str, form: str | None, dtype: str, seed: int
) -> None:
    """In most chains the state is somewhere below 2**-8 of what went into it."""
    made = tensors("telescoping_cancellation", op, form, dtype=dtype, seed=seed)
    state, size = states(made)
    with np.errstate(divide="ignore"):
        worst = (size / np.abs(state)).max(axis=1)
    assert np.median(worst) > 2.0**8


@EVERY_FORM
def test_telescoping_pairs_straddle_chunk_edges(op: str, form: str | None) -> None:
    """At every chunk edge some chain holds a large state that is gone a chunk later."""
    state, _ = states(tensors("telescoping_cancellation", op, form))
    for edge in range(CHUNK, 7 * CHUNK, CHUNK):
        before = np.abs(state[:, edge - 1])
        after = np.abs(state[:, edge : edge + CHUNK]).min(axis=1)
        assert (before > 64.0 * after).any()


@EVERY_FORM
@DTYPES
def test_subnormal_state(op: str, form: str | None, dtype: str) -> None:
    """Drives and first states lie below the smallest normal value, and are not zero."""
    made = tensors("subnormal_state", op, form, dtype=dtype)
    drive = made["b"] if op == "linear_scan" else made["u"]
    for values in (drive, made["initial_state"]):
        assert np.abs(values).max() < 2.0 * FORMATS[dtype].smallest_normal
        assert (values != 0.0).mean() > 0.95
    assert (np.abs(drive) < FORMATS[dtype].smallest_normal).mean() > 0.8


@EVERY_FORM
@DTYPES
def test_impulse_at_chunk_edge(op: str, form: str | None, dtype: str) -> None:
    """Each chain holds one impulse, at a chunk edge or beside it, and decays slowly."""
    made = tensors("impulse_at_chunk_edge", op, form, dtype=dtype)
    drive = made["b"] if op == "linear_scan" else made["u"].transpose(0, 2, 1)
    state = made["initial_state"].reshape(2, 12, -1)[..., 0]
    impulses = (drive != 0.0).sum(axis=1) + (state != 0.0)
    assert (impulses == 1).all()
    steps = drive.shape[1]
    places = np.nonzero(drive)[1]
    at_edge = (places + 1) % CHUNK <= 2
    assert (at_edge | (places == 0) | (places == steps - 1)).all()
    assert {CHUNK - 1, 0, 1} <= set((places % CHUNK).tolist())
    assert decays(made).min() > 0.8


def test_impulse_without_a_first_state() -> None:
    """Where no first state is given, every chain has its impulse among the drives."""
    made = tensors("impulse_at_chunk_edge", initial_state=False)
    assert "initial_state" not in made
    assert ((made["b"] == 1.0).sum(axis=1) == 1).all()


@DTYPES
def test_dip_and_regrow(dtype: str) -> None:
    """Prefix products fall and rise by many binades, and never leave the range."""
    made = tensors("dip_and_regrow", dtype=dtype)
    level = np.log2(made["a"]).cumsum(axis=1)
    deep = 8.0 if dtype == "fp16" else 40.0
    assert (level.min(axis=1) < 2.0 - deep).all()
    regrown = (level - np.minimum.accumulate(level, axis=1)).max(axis=1)
    assert np.median(regrown) > deep - 3.0
    assert regrown.max() <= deep
    state, size = states(made)
    assert size.max() < FORMATS[dtype].largest
    assert np.abs(state).max() > 1.0


@DTYPES
def test_dip_out_of_range(dtype: str) -> None:
    """Products fall below the least value that computation can hold, and rise back."""
    made = tensors("dip_out_of_range", dtype=dtype, steps=300)
    compute = FORMATS["fp64" if dtype == "fp64" else "fp32"]
    level = np.log2(made["a"]).cumsum(axis=1)
    assert level.min() < np.log2(compute.smallest_subnormal)
    assert level[:, -50:].max() > -30.0
    state, _ = states(made)
    held = np.abs(state[:, :, 1::2])
    if dtype != "fp16":
        assert held.min() >= 2.0**-10 * compute.smallest_normal
        assert held.max() < compute.largest
    else:
        assert held.min() < compute.smallest_subnormal


@DTYPES
def test_negative_decay(dtype: str) -> None:
    """Magnitudes lie in [1/2, 1]; some channels are negative throughout, some mixed."""
    kept = tensors("negative_decay", dtype=dtype)["a"]
    assert np.abs(kept).min() >= 0.5
    assert np.abs(kept).max() == 1.0
    assert (kept[:, :, ::2] < 0.0).all()
    assert (kept[:, :, 1::2] > 0.0).any()


@LINEAR_FORMS
@DTYPES
@pytest.mark.parametrize("steps", [5, 133, 3000])
def test_growth(form: str, dtype: str, steps: int) -> None:
    """Some decays exceed one, all products stay moderate, and states in range."""
    made = tensors("growth", form=form, dtype=dtype, steps=steps)
    kept = decays(made)
    assert kept.max() > 1.0
    assert kept.max() <= 1.11
    assert (kept >= 1.0).all()
    grown = kept.cumprod(axis=1)
    assert grown.max() <= (2.0**2.2 if dtype == "fp16" else 2.0**20.5)
    _, size = states(made)
    assert size.max() < FORMATS[dtype].largest / 4


@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize("steps", [5, 133, 3000])
@DTYPES
def test_growth_of_selective_scan(dtype: str, steps: int, softplus: bool) -> None:
    """A has both signs, the states of one sign grow, and all stay in range."""
    made = tensors(
        "growth",
        "selective_scan",
        None,
        dtype=dtype,
        steps=steps,
        delta_softplus=softplus,
    )
    assert (made["A"][:, 0] > 0.0).all()
    assert (made["A"] < 0.0).any()
    kept = decays(made, softplus=softplus)
    assert kept.max() <= 1.11
    grown = kept.prod(axis=1)
    assert grown.max() <= (2.0**2.2 if dtype == "fp16" else 2.0**20.5)
    assert grown.max() >= (1.15 if steps == 5 else 2.0)
    _, size = states(made, softplus=softplus)
    assert size.max() < FORMATS[dtype].largest / 4


@EVERY_FORM
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_state_like_tensors_need_their_own_format(
    op: str, form: str | None, dtype: str
) -> None:
    """What is always fp32 has values that the storage format does not hold."""
    options = {"keys": "constant"} if op == "selective_scan" else {}
    made = tensors("mixed_time_scales", op, form, dtype=dtype, **options)
    for spec in OPS[op].inputs:
        if spec.name in made:
            values = made[spec.name]
            short = values == round_array(FORMATS[dtype], values)
            storage = spec_of(OPS[op], spec.name, values.ndim).kind == "storage"
            assert short.all() if storage else short[values != 0.0].mean() < 0.2


@pytest.mark.parametrize("softplus", [False, True])
@DTYPES
def test_softplus_tails(dtype: str, softplus: bool) -> None:
    """The argument of softplus comes near -20, near 0 and on both sides of 20."""
    made = tensors(
        "softplus_tails", "selective_scan", None, dtype=dtype, delta_softplus=softplus
    )
    argument = made["delta"] + made["delta_bias"][:, None]
    low, high = (-19.0, 19.0) if softplus else (1e-3, 19.0)
    assert (argument < low).any()
    assert ((argument > high) & (argument < 20.0)).any()
    assert (argument > 20.0).any()
    assert (np.abs(argument) < 1.0).any()


@pytest.mark.parametrize(
    ("recipe", "op", "form"),
    [
        (recipe.name, op, form)
        for recipe in RECIPES.values()
        for op, form in recipe.supports
        if (op, form) in FORMS
    ],
)
def test_states_stay_in_the_range_of_fp16(
    recipe: str, op: str, form: str | None
) -> None:
    """Over 600 tokens no state, nor the product of two, comes near fp16's largest."""
    exact = {"z": False, "delta_softplus": False} if RECIPES[recipe].exact else {}
    options = exact if op == "selective_scan" else {}
    made = tensors(recipe, op, form, dtype="fp16", steps=600, **options)
    state, _ = states(made, softplus=not options)
    assert float(np.abs(state).max()) ** 2 < FORMATS["fp16"].largest
