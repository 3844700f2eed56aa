"""Budgets and second moments on the card: those of the CPU, to the bit."""

import numpy as np
import pytest
from numpy.typing import NDArray

from scancheck.bounds.budget import budget_for
from scancheck.bounds.card_number import exact_card_number
from scancheck.bounds.error_number import exact_number
from scancheck.bounds.error_system import ErrorSystem
from scancheck.bounds.moments import moments_for
from scancheck.bounds.rules import rules_for
from scancheck.contract import CONTRACT_FORMATS, Contract, Structure
from scancheck.ops.linear_scan import LINEAR_SCAN
from scancheck.ops.normal_form import Op
from scancheck.ops.selective_scan import SELECTIVE_SCAN
from scancheck.oracles import cuda_card, engine

FloatArray = NDArray[np.float64]
SEQUENTIAL = Structure(kind="sequential")
CONTRACTS = {
    "any order": Contract(),
    "sequential": Contract(structure=SEQUENTIAL),
    "sequential fma": Contract(structure=SEQUENTIAL, fma="yes", ftz="no"),
    "chunks": Contract(structure=Structure(kind="chunk", chunk=8)),
    "kahan": Contract(comp="kahan"),
    "compensated": Contract(structure=SEQUENTIAL, comp="full"),
    "compensated chunks": Contract(
        structure=Structure(kind="chunk", chunk=4), comp="full"
    ),
    "short state": Contract(state="bf16", state_every=4, structure=SEQUENTIAL),
    "casts": Contract(casts=(("decay", "bf16"), ("drive", "fp16"))),
    "named order": Contract(
        structure=Structure(kind="tree", order="hillis_steele"),
    ),
    "summed gates": Contract(gate_gradient="reverse_cumsum"),
}


Case = tuple[Op, dict[str, FloatArray], dict[str, bool], dict[str, FloatArray]]


def cases() -> dict[str, Case]:
    """Both ops; linear_scan within range and at its ends."""
    rng = np.random.default_rng(4)
    B, T, D, N = 2, 19, 5, 3

    def normal(*shape: int) -> FloatArray:
        return rng.normal(size=shape).astype(np.float32).astype(np.float64)

    bars = {"h": normal(B, T, D), "final_state": normal(B, D)}
    plain = {
        "a": rng.uniform(-1, 1.05, (B, T, D)),  # not of fp32: rounded where they enter
        "b": normal(B, T, D),
        "initial_state": normal(B, D),
    }
    ends = {
        "a": rng.choice([0.0, 1.0, 1.5, 2.0**-140, -(2.0**30)], (B, T, D)),
        "b": normal(B, T, D) * rng.choice([2.0**-135, 1.0, 2.0**110], (B, T, D)),
    }
    gates = {"g": -np.abs(normal(B, T, D)), "b": normal(B, T, D)}
    selective = {
        "u": normal(B, D, T),
        "delta": normal(B, D, T),
        "A": -np.abs(normal(D, N)),
        "B": normal(B, N, T),
        "C": normal(B, N, T),
        "D": normal(D),
        "z": normal(B, D, T),
        "delta_bias": normal(D),
        "initial_state": normal(B, D, N),
    }
    softplus = {"delta_softplus": True}
    y = {"y": normal(B, D, T), "last_state": normal(B, D, N)}
    return {
        "plain": (LINEAR_SCAN, plain, {}, bars),
        "ends": (LINEAR_SCAN, ends, {}, bars),
        "gates": (LINEAR_SCAN, gates, {}, bars),
        "selective": (SELECTIVE_SCAN, selective, softplus, y),
    }


CASES = cases()


# Of the difference of two values in fp64 that is 2^-24 of them, or more.
OF_A_BIAS = 1e-7


def assert_alike(
    left: FloatArray, right: FloatArray, exact: bool, name: str, rtol: float = 1e-11
) -> None:
    """Equal, or up to what another exp and other sums round otherwise.

    The cotangents of a tile are summed in one pass on the CPU, product by product on
    the card, so that those of keys and readouts differ in their last digits.
    """
    if exact and not name.startswith("d "):
        assert np.array_equal(left, right, equal_nan=True), name
    else:
        np.testing.assert_allclose(left, right, rtol=rtol, atol=2.0**-1060)


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
@pytest.mark.parametrize("case", CASES)
def test_budgets_equal_those_of_the_cpu(
    case: str, contract: Contract, card: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Allowances, predicted overflows and magnitudes, over several tiles."""
    op, tensors, switches, bars = CASES[case]
    entries = 2 * 5 * (3 if op is SELECTIVE_SCAN else 1)
    monkeypatch.setattr(engine, "TILE_ENTRIES", 8 * entries)
    monkeypatch.setattr("scancheck.bounds.card.cuda_stretch", lambda gradients: 1)
    given = op, tensors, switches, contract, "fp32", bars
    want, got = budget_for(*given), budget_for(*given, device="cuda")
    # Kernels have another exp than NumPy.
    exact = card == "host" and case in ("plain", "ends")
    for left, right, of in (
        (want.outputs, got.outputs, ""),
        (want.gradients, got.gradients, "d "),
    ):
        assert left.keys() == right.keys()
        for name, allowance in left.items():
            other, told = right[name], of + name
            assert_alike(allowance.error, other.error, exact, told)
            assert_alike(allowance.magnitude, other.magnitude, exact, told)
            assert np.array_equal(allowance.overflows, other.overflows), name


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
@pytest.mark.parametrize("case", CASES)
def test_moments_equal_those_of_the_cpu(
    case: str, contract: Contract, card: str
) -> None:
    """sqrt(v) of outputs, and None where it does not apply."""
    op, tensors, switches, _ = CASES[case]
    given = op, tensors, switches, contract, "fp32"
    want, got = moments_for(*given), moments_for(*given, device="cuda")
    assert (want is None) == (got is None)
    # Kernels have another exp than NumPy.
    exact = card == "host" and case in ("plain", "ends")
    for name, root in (want or {}).items():
        assert got is not None
        assert_alike(root, got[name], exact, name, OF_A_BIAS)


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
@pytest.mark.parametrize("case", CASES)
def test_one_tile_has_the_bits_of_two_passes(
    case: str, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a budget's states are kept for the adjoint, nothing else changes."""
    op, tensors, switches, bars = CASES[case]
    given = op, tensors, switches, contract, "fp32", bars
    once = budget_for(*given)
    monkeypatch.setattr(ErrorSystem, "alike_when_kept", False)
    twice = budget_for(*given)
    for left, right in (
        (once.outputs, twice.outputs),
        (once.gradients, twice.gradients),
    ):
        for name, allowance in left.items():
            assert np.array_equal(allowance.error, right[name].error), name
            assert np.array_equal(allowance.magnitude, right[name].magnitude), name
            assert np.array_equal(allowance.overflows, right[name].overflows), name


@pytest.mark.parametrize("flush", ["yes", "no"])
@pytest.mark.parametrize("compute", CONTRACT_FORMATS)
def test_inputs_are_those_of_the_cpu(compute: str, flush: str, card: str) -> None:
    """What a format holds, at its ends and between its numbers, has no error."""
    rules = rules_for(Contract(compute=compute, ftz=flush), "fp64")
    fmt = CONTRACT_FORMATS[compute]
    ends = [fmt.largest, fmt.smallest_normal, fmt.smallest_subnormal, 1.0, 0.0, np.inf]
    with np.errstate(over="ignore", under="ignore"):
        sizes = np.outer(ends, [1.0, 0.5, 1.5, 2.0, 3.0, 1 + 2.0**-10, 1 - 2.0**-9])
        sizes = np.concatenate([sizes, sizes * (1 + 2.0**-50)])
    sizes[0, 0] = np.nan
    values = np.stack([sizes, -sizes])
    with np.errstate(all="ignore"):
        want = exact_number(rules, values)
    got = exact_card_number(rules, values)
    for left, right in zip(want.components, got.components, strict=True):
        assert np.array_equal(left, cuda_card.on_cpu(right), equal_nan=True)
