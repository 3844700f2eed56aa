"""The recipes of the full profile carry the hazard in their names, too."""

import math

import numpy as np
import pytest
from drawn import CHUNK, DTYPES, EVERY_FORM, LINEAR_FORMS, decays, states, tensors

from scancheck.formats import FORMATS


@EVERY_FORM
@DTYPES
def test_every_memory_length(op: str, form: str | None, dtype: str) -> None:
    """Chains remember nothing, a token, a chunk, the sequence, and all of it."""
    kept = decays(tensors("every_memory_length", op, form, dtype=dtype))
    kept = np.moveaxis(kept, 1, 0).reshape(kept.shape[1], -1)
    memory = 1.0 / np.maximum(-np.log(np.maximum(kept.mean(axis=0), 1e-300)), 1e-9)
    assert (kept == 0.0).all(axis=0).any()
    assert (kept == 1.0).all(axis=0).any()
    for low, high in ((0.5, 2.0), (CHUNK / 16, CHUNK / 4), (CHUNK / 2, 2 * CHUNK)):
        assert ((memory > low) & (memory < high)).any()
    assert ((memory > 3 * CHUNK) & (memory < 20 * CHUNK)).any()


@EVERY_FORM
@DTYPES
def test_strong_gates(op: str, form: str | None, dtype: str) -> None:
    """No chain remembers more than a few tokens, and none forgets at once."""
    kept = decays(tensors("strong_gates", op, form, dtype=dtype))
    assert kept.max() < (0.75 if form == "a" else 0.65)
    assert kept.min() > 2.0**-8


@EVERY_FORM
@DTYPES
def test_constant_drive_and_decay(op: str, form: str | None, dtype: str) -> None:
    """Nothing changes from token to token, and one channel is a pure sum."""
    made = tensors("constant_drive_and_decay", op, form, dtype=dtype)
    kept = decays(made)
    assert (kept == kept[:, :1]).all()
    assert (kept[:, :, 0] == 1.0).all()
    drive = made["b"] if op == "linear_scan" else made["u"]
    assert len(np.unique(drive)) == 1
    assert drive.min() > 0.0


@EVERY_FORM
@DTYPES
def test_one_strong_gate_per_chunk(op: str, form: str | None, dtype: str) -> None:
    """Each channel has one tiny decay per chunk, at a place of its own."""
    kept = decays(tensors("one_strong_gate_per_chunk", op, form, dtype=dtype))
    strong = kept < 1e-10
    assert kept[~strong].min() > 0.99
    places = np.nonzero(strong)[1] % CHUNK
    assert set(places.tolist()) == {0, 1, CHUNK // 2, CHUNK - 1}
    whole = strong[:, : 8 * CHUNK].reshape(2, 8, CHUNK, -1)
    assert (whole.sum(axis=2) == 1).all()


@LINEAR_FORMS
@DTYPES
@pytest.mark.parametrize("seed", range(3))
def test_prescribed_condition(form: str, dtype: str, seed: int) -> None:
    """At chunk edges and the end the state is 2**-k of M, to the drive's rounding."""
    made = tensors("prescribed_condition", form=form, dtype=dtype, seed=seed)
    state, size = states(made)
    k = 4 * (1 + np.arange(12) % ((FORMATS[dtype].precision + 4) // 4))
    slack = 2 * FORMATS[dtype].unit_roundoff
    for token in (CHUNK - 1, CHUNK, CHUNK + 1, state.shape[1] - 1):
        share = np.abs(state[:, token]) / size[:, token]
        assert (np.abs(share - 2.0**-k) <= slack + 2.0**-40).all()


@EVERY_FORM
@DTYPES
def test_drives_of_many_scales(op: str, form: str | None, dtype: str) -> None:
    """Even channels spread over many binades, odd ones jump between two scales."""
    made = tensors("drives_of_many_scales", op, form, dtype=dtype)
    drive = made["b"] if op == "linear_scan" else made["u"].transpose(0, 2, 1)
    binades = np.log2(np.abs(drive))
    assert np.median(binades.std(axis=1)[:, ::2]) > (3.0 if dtype == "fp16" else 6.0)
    jump = np.abs(np.diff(binades[:, :, 1::2], axis=1))
    assert ((jump < 4.0) | (jump > (10.0 if dtype == "fp16" else 115.0))).all()


@EVERY_FORM
@DTYPES
def test_cumulative_gate_at_limit(op: str, form: str | None, dtype: str) -> None:
    """The product over a chunk lies where exp turns subnormal, zero or overflows."""
    made = tensors("cumulative_gate_at_limit", op, form, dtype=dtype)
    with np.errstate(divide="ignore"):
        log = np.log(decays(made)[:, : 8 * CHUNK])
    if op == "selective_scan":
        log = log[..., 0]
    sums = -log.reshape(2, 8, CHUNK, 12).sum(axis=2)
    fp32 = (87.3365, 88.7228, 103.9721)
    limits = {"fp16": (9.7041, 11.0899, 17.3287, *fp32)}.get(dtype, fp32)
    if dtype == "fp64":
        limits = (708.3964, 709.7827, 745.1332)
    off = np.abs(sums[..., None] / np.array(limits) - 1.0).min(axis=-1)
    exact = op == "linear_scan" and dtype in ("fp32", "fp64")
    assert off.max() < (1e-5 if exact else 0.12)
    if exact:
        scaled = (sums[..., None] / np.array(limits) - 1.0) * 2.0**23
        nearest = np.take_along_axis(
            scaled, np.abs(scaled).argmin(axis=-1)[..., None], axis=-1
        )
        assert (nearest > 0.5).any()
        assert (nearest < -0.5).any()


@DTYPES
def test_most_negative_gate(dtype: str) -> None:
    """The sum of a few gates overflows; no gate does by itself."""
    gate = tensors("most_negative_gate", form="g", dtype=dtype, steps=400)["g"]
    largest = min(FORMATS[dtype].largest, FORMATS["fp32"].largest)
    assert np.isfinite(gate).all()
    assert (gate.sum(axis=1) < -largest).all()
    assert (gate > -0.1).mean() > 0.8


@DTYPES
def test_rise_and_fall(dtype: str) -> None:
    """A product over a rise leaves the range (fp16: nears it), and no state does."""
    made = tensors("rise_and_fall", dtype=dtype, steps=300)
    level = np.log2(made["a"]).cumsum(axis=1)
    risen = (level - np.minimum.accumulate(level, axis=1)).max()
    largest = math.log2(FORMATS["fp64" if dtype == "fp64" else "fp32"].largest)
    assert risen > (10.0 if dtype == "fp16" else largest + 4)
    assert (level.max(axis=1) - level[:, -1]).max() > risen / 2
    _, size = states(made)
    assert size.max() < FORMATS[dtype].largest * 2.0**-4


@LINEAR_FORMS
@DTYPES
def test_isolated_growth(form: str, dtype: str) -> None:
    """Single decays are 2**30 (fp16: 2**6), and no product is much above one."""
    kept = decays(tensors("isolated_growth", form=form, dtype=dtype))
    top = 2.0**6 if dtype == "fp16" else 2.0**30
    jumps = kept > 1.5
    assert kept.max() > 0.85 * top
    assert 0.0 < jumps.mean() < 0.2
    assert kept.cumprod(axis=1).max() < 1.3


@EVERY_FORM
@DTYPES
def test_values_tell_their_place(op: str, form: str | None, dtype: str) -> None:
    """All decays are zero, and neighbours in any direction have other numbers."""
    exact = {"z": False, "delta_softplus": False}
    options = exact if op == "selective_scan" else {}
    made = tensors("values_tell_their_place", op, form, dtype=dtype, **options)
    drive = made["b"] if op == "linear_scan" else made["u"].transpose(0, 2, 1)
    assert (decays(made, softplus=False) == 0.0).all()
    assert set(np.unique(drive).tolist()) <= set(range(251))
    for axis in range(3):
        assert (np.diff(drive, axis=axis) != 0.0).all()
    assert (drive[:, CHUNK:] != drive[:, :-CHUNK]).all()


@LINEAR_FORMS
@DTYPES
def test_noncommuting_steps(form: str, dtype: str) -> None:
    """Two neighbouring steps, swapped, give twice or half the drive."""
    made = tensors("noncommuting_steps", form=form, dtype=dtype)
    kept, drive = decays(made), made["b"]
    right = kept[:, 1:] * drive[:, :-1] + drive[:, 1:]
    swapped = kept[:, :-1] * drive[:, 1:] + drive[:, :-1]
    factor = np.maximum(right / swapped, swapped / right)
    assert np.abs(factor - 2.0).max() < 0.02


@EVERY_FORM
@DTYPES
def test_large_first_state(op: str, form: str | None, dtype: str) -> None:
    """The first state is large in some channels, zero in others, and is remembered."""
    made = tensors("large_first_state", op, form, dtype=dtype)
    first = np.abs(made["initial_state"]).max(axis=0).reshape(12, -1).max(axis=-1)
    assert (first[::3] > (50.0 if dtype == "fp16" else 5000.0)).all()
    assert (first[1::3] == 0.0).all()
    assert ((first[2::3] > 0.0) & (first[2::3] < 1.0)).all()
    assert decays(made).prod(axis=1).max() > 0.3


@DTYPES
def test_signed_zeros(dtype: str) -> None:
    """Decays, drives and first states have zeros of both signs, and other values."""
    made = tensors("signed_zeros", dtype=dtype, steps=400)
    for values in made.values():
        zero = values == 0.0
        assert 0.0 < zero.mean() < 0.8
        assert set(np.signbit(values[zero]).tolist()) == {True, False}
    assert made["a"][made["a"] != 0.0].min() > 0.8


@DTYPES
@pytest.mark.parametrize("bias", [True, False])
def test_large_step_bias(dtype: str, bias: bool) -> None:
    """Softplus is reached at -20, 0 and 20, by the bias where there is one."""
    made = tensors(
        "large_step_bias", "selective_scan", None, dtype=dtype, delta_bias=bias
    )
    offset = made["delta_bias"] if bias else np.zeros(12)
    argument = made["delta"] + offset[:, None]
    middle = np.median(argument, axis=(0, 2))
    for centre in (-20.0, 0.0, 20.0):
        assert (np.abs(middle - centre) < 2.5).any()
    if bias:
        assert np.abs(made["delta"]).max() < 6.0
        assert np.abs(offset).max() > 18.0
    assert -16.0 <= made["A"].min() <= made["A"].max() <= -1.0
