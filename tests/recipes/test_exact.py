"""exact_dyadic: no order of combination rounds, in any format of 16 bits or more."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scancheck.case import make_case
from scancheck.formats import BF16, FORMATS, FloatArray, round_array
from scancheck.recipes import build

MOST_BITS = min(fmt.precision for fmt in FORMATS.values() if fmt.bits > 8)


def significant_bits(value: Fraction) -> int:
    """Bits from the first to the last one of a dyadic value."""
    denominator = value.denominator
    assert denominator & (denominator - 1) == 0
    numerator = abs(value.numerator)
    trailing_zeros = max(0, (numerator & -numerator).bit_length() - 1)
    return numerator.bit_length() - trailing_zeros


def linear_scan_tensors(form: str, seed: int, **sizes: int) -> dict[str, FloatArray]:
    """The tensors of one linear_scan case with a first state."""
    return build(
        make_case(
            "linear_scan",
            sizes,
            dtype="bf16",
            recipe="exact_dyadic",
            seed=seed,
            options={"form": form, "initial_state": True},
        )
    ).tensors


def selective_scan_tensors(seed: int, **options: Any) -> dict[str, FloatArray]:
    """The tensors of one selective_scan case with a first state, in bf16."""
    steps, states = options.pop("steps"), options.pop("states")
    return build(
        make_case(
            "selective_scan",
            {"B": 2, "D": 4, "L": steps, "N": states},
            dtype="bf16",
            recipe="exact_dyadic",
            seed=seed,
            options={
                "initial_state": True,
                "z": False,
                "delta_softplus": False,
                **options,
            },
        )
    ).tensors


def decay_of(made: dict[str, FloatArray]) -> FloatArray:
    """The decays of linear_scan; exp(-1024) counts as the zero it rounds to."""
    return made["a"] if "a" in made else np.where(made["g"] == 0.0, 1.0, 0.0)


@pytest.mark.parametrize("form", ["a", "g"])
@pytest.mark.parametrize("seed", range(3))
def test_every_interval_of_linear_scan_needs_few_bits(form: str, seed: int) -> None:
    """The decay and drive of any interval, hence of any tree, have at most 8 bits.

    So have the states, which are the intervals from the first state on. With all signs
    alike, sums of quarters would still have no more than 8 bits.
    """
    made = linear_scan_tensors(form, seed, B=1, T=45, D=3)
    kept = decay_of(made)[0]
    for channel in range(3):
        decays = [Fraction(x) for x in kept[:, channel]]
        drives = [Fraction(x) for x in made["b"][0, :, channel]]
        firsts = [Fraction(made["initial_state"][0, channel]), *drives]
        for start, first in enumerate(firsts):
            total, product, most = first, Fraction(1), abs(first)
            for decay, drive in zip(decays[start:], drives[start:], strict=True):
                product *= decay
                total = decay * total + drive
                most = decay * most + abs(drive)
                assert significant_bits(product) <= MOST_BITS
                assert significant_bits(total) <= MOST_BITS
                assert 4 * most < 2**MOST_BITS


@pytest.mark.parametrize("form", ["a", "g"])
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    steps=st.integers(0, 400),
    rows=st.integers(1, 3),
    chunk=st.integers(1, 70),
)
def test_bf16_arithmetic_on_linear_scan_is_exact(
    form: str, seed: int, steps: int, rows: int, chunk: int
) -> None:
    """Token by token or by chunk, rounding each operation to bf16 changes nothing."""
    made = linear_scan_tensors(form, seed, B=rows, T=steps, D=5)
    kept, drive = decay_of(made), made["b"]
    state = made["initial_state"]
    for start in range(0, steps, chunk):
        product, local = np.ones_like(state), np.zeros_like(state)
        before = state
        for t in range(start, min(start + chunk, steps)):
            product = exactly(product * kept[:, t])
            local = exactly(exactly(kept[:, t] * local) + drive[:, t])
            state = exactly(exactly(kept[:, t] * state) + drive[:, t])
            assert np.array_equal(exactly(exactly(product * before) + local), state)


def exactly(values: FloatArray) -> FloatArray:
    """The values, after checking that bf16 holds them all."""
    assert np.array_equal(values, round_array(BF16, values))
    return values


@pytest.mark.parametrize("keys", ["time", "grouped", "constant"])
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    steps=st.integers(0, 200),
    states=st.integers(1, 20),
    bias=st.booleans(),
)
def test_bf16_arithmetic_on_selective_scan_is_exact(
    keys: str, seed: int, steps: int, states: int, bias: bool
) -> None:
    """So for selective_scan, its states small, and summed over N in two orders."""
    made = selective_scan_tensors(
        seed, steps=steps, states=states, keys=keys, delta_bias=bias
    )
    step = made["delta"] + (made["delta_bias"][:, None] if bias else 0.0)
    assert set(np.unique(step).tolist()) <= {0.0, 1.0}
    state = made["initial_state"]
    local = np.zeros_like(state)
    for t in range(steps):
        d, u = step[:, :, t, None], made["u"][:, :, t, None]
        written, read = (at_token(made[name], t) for name in ("B", "C"))
        kept = np.where(d * made["A"] == 0.0, 1.0, 0.0)
        drive = exactly(d * u) * written
        state = exactly(kept * state + drive)
        assert np.abs(state).max() <= 14
        local = exactly(kept * local + drive)
        forward = backward = exactly(made["D"] * u[..., 0])
        for n in range(states):
            m = states - 1 - n
            forward = exactly(forward + (read * state)[..., n])
            backward = exactly(backward + (read * state)[..., m])
        assert np.array_equal(forward, backward)


def at_token(keys: FloatArray, t: int) -> FloatArray:
    """B or C of one token as [B, D, N], or what broadcasts to it."""
    match keys.ndim:
        case 2:
            return keys[None]
        case 3:
            return keys[:, None, :, t]
        case _:
            return keys[:, :, :, t]


@pytest.mark.parametrize("form", ["a", "g"])
def test_linear_scan_resets_every_8_to_16_tokens(form: str) -> None:
    """Resets are that far apart, and form a halves between them at most twice."""
    kept = decay_of(linear_scan_tensors(form, 3, B=2, T=300, D=4))
    assert set(np.unique(kept).tolist()) <= {0.0, 0.5, 1.0}
    for row in range(2):
        for channel in range(4):
            resets = np.nonzero(kept[row, :, channel] == 0.0)[0]
            assert set(np.diff(resets).tolist()) <= set(range(8, 17))
            halved = np.add.reduceat(kept[row, :, channel] == 0.5, resets)
            assert halved.max() == (2 if form == "a" else 0)


@pytest.mark.parametrize("keys", ["time", "grouped", "constant"])
def test_selective_scan_remembers_and_resets(keys: str) -> None:
    """Some states keep a drive over many tokens, some are reset, and outputs vary."""
    made = selective_scan_tensors(0, steps=100, states=4, keys=keys)
    assert set(np.unique(made["A"]).tolist()) == {0.0, -1024.0}
    assert len(np.unique(made["u"])) > 4
    assert (made["u"][..., 0] != 0.0).all()
    assert (made["u"][..., -1] != 0.0).all()
