"""Ops with heads: lowering, epilogue and pullbacks against their steps in torch."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from step_formulas import STEPS

from scancheck.errors import CaseInvalid
from scancheck.ops import OPS
from scancheck.ops.normal_form import Cotangents, Lowered, Op

FloatArray = NDArray[np.float64]
Compare = Callable[..., list[str]]

# Distinct sizes, so that no two axes can be taken for each other; of the two groupings
# of heads the second has a key head for each value head.
SIZES = {"B": 2, "T": 5, "K": 7, "V": 4, "P": 4, "N": 7, "M": 2}
HEADS = {
    "shared": {"H": 3, "HV": 6, "G": 1},
    "own": {"H": 3, "HV": 3, "G": 3},
}
ENGINES = ("generic", "fp64")


def optional(op: Op) -> list[str]:
    """The inputs that may be left out."""
    return [spec.name for spec in op.inputs if not spec.required]


def problem(
    name: str, sizes: Mapping[str, int], left_out: tuple[str, ...] = (), seed: int = 0
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Tensors and cotangents; gates are negative, beta in (0, 2), keys of unit norm."""
    op, rng = OPS[name], np.random.default_rng(seed)
    tensors = {}
    for spec in op.inputs:
        x = rng.normal(size=tuple(sizes[axis] for axis in spec.axes))
        if spec.name in ("g", "gk", "gv", "w", "A"):
            x = -np.abs(x)
        if spec.name == "beta":
            x = 2 / (1 + np.exp(-x))
        if spec.name in ("k", "a", "b") and x.size:
            x = x / np.linalg.norm(x, axis=-1, keepdims=True)
        if spec.name not in left_out:
            tensors[spec.name] = x
    bars = {
        spec.name: rng.normal(size=tuple(sizes[axis] for axis in spec.axes))
        for spec in op.outputs
    }
    return tensors, bars


def operations(sizes: Mapping[str, int]) -> int:
    """Roundings on the longest path: steps, sums over all axes, functions."""
    width = sizes["K"] + sizes["V"]
    steps = sizes["T"] * sizes["M"]
    return (32 + 2 * width) * (steps + 1) + 2 * sizes["B"] * steps * width


def switches_of(op: Op, on: bool = False) -> dict[str, bool]:
    """All switches of an op."""
    return dict.fromkeys(op.switches, on)


CASES = [
    pytest.param(name, heads, left_out, on, id=f"{name}-{heads}-{label}-{int(on)}")
    for name in STEPS
    for heads in HEADS
    for left_out, label in (
        *(((one,), f"no {one}") for one in optional(OPS[name])),
        ((), "all"),
        (tuple(optional(OPS[name])), "required"),
    )
    for on in ((False, True) if OPS[name].switches else (False,))
]


@pytest.mark.parametrize(("name", "heads", "left_out", "on"), CASES)
def test_agrees_with_autograd(
    against_torch: Compare, name: str, heads: str, left_out: tuple[str, ...], on: bool
) -> None:
    """Outputs and gradients, with and without each optional tensor."""
    sizes = SIZES | HEADS[heads]
    tensors, bars = problem(name, sizes, left_out)
    wrong = against_torch(
        OPS[name],
        STEPS[name],
        tensors,
        switches_of(OPS[name], on),
        bars,
        operations(sizes),
        ENGINES,
    )
    assert wrong == []


@pytest.mark.parametrize("bar", ["sequence", "final", "none"])
@pytest.mark.parametrize("name", STEPS)
def test_agrees_with_autograd_through_one_output(
    against_torch: Compare, name: str, bar: str
) -> None:
    """A gradient through one output alone, or none, is right too."""
    op, sizes = OPS[name], SIZES | HEADS["shared"]
    tensors, bars = problem(name, sizes)
    sequence, *finals = (spec.name for spec in op.outputs)
    kept = {"sequence": [sequence], "final": finals, "none": []}[bar]
    bars = {output: bars[output] for output in kept}
    wrong = against_torch(
        op,
        STEPS[name],
        tensors,
        switches_of(op, True),
        bars,
        operations(sizes),
        ENGINES,
    )
    assert wrong == []


@settings(max_examples=60)
@given(
    name=st.sampled_from(list(STEPS)),
    seed=st.integers(0, 2**32 - 1),
    B=st.integers(0, 2),
    T=st.integers(0, 4),
    H=st.integers(1, 2),
    per_head=st.integers(1, 3),
    K=st.integers(1, 3),
    V=st.integers(1, 3),
    M=st.integers(1, 3),
)
def test_agrees_with_autograd_at_every_size(
    against_torch: Compare,
    name: str,
    seed: int,
    B: int,
    T: int,
    H: int,
    per_head: int,
    K: int,
    V: int,
    M: int,
) -> None:
    """No size breaks it: no token, no batch row, one of each, any grouping of heads."""
    sizes = {"B": B, "T": T, "H": H, "HV": H * per_head, "K": K, "V": V, "M": M}
    if name == "ssd":
        sizes |= {"H": H * per_head, "G": H, "N": K, "P": V}
    tensors, bars = problem(name, sizes, seed=seed)
    wrong = against_torch(
        OPS[name],
        STEPS[name],
        tensors,
        switches_of(OPS[name], True),
        bars,
        operations(sizes),
        ENGINES,
    )
    assert wrong == []


@pytest.mark.parametrize("name", STEPS)
def test_tiles_change_no_value(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Outputs and gradients with a time axis have the same bits in tiles of any size.

    Those that are summed over time are summed in another order: within the radii.
    """
    from scancheck.oracles import engine
    from scancheck.oracles.ball import certified_radius, exact_ball
    from scancheck.oracles.systems import GenericSystem

    class Balls(GenericSystem):
        def constant(self, values: FloatArray) -> Any:
            return exact_ball(values)

    op, sizes = OPS[name], SIZES | HEADS["shared"]
    tensors, bars = problem(name, sizes)
    switches = switches_of(op, True)
    whole = engine.solve(Balls(), op, tensors, switches, bars)
    groups, keys, lanes = op.group_shape(sizes)
    entries = groups * keys * lanes * op.substeps(sizes)
    for steps in (1, 2, 3):
        monkeypatch.setattr(engine, "TILE_ENTRIES", steps * entries)
        tiled = engine.solve(Balls(), op, tensors, switches, bars)
        for kind in ("outputs", "gradients"):
            for tensor, ball in getattr(whole, kind).items():
                other = getattr(tiled, kind)[tensor]
                summed = kind == "gradients" and tensor in ("A", "D", "dt_bias", "u")
                radius = certified_radius(ball) + certified_radius(other)
                off = np.abs(ball.value - other.value)
                assert (off <= (radius if summed else 0.0)).all(), (steps, tensor)


@pytest.mark.parametrize("name", STEPS)
def test_radii_hold_the_exact_values(name: str) -> None:
    """Balls in fp64 meet those of 200 bits, which every op can be run in too."""
    from scancheck.oracles.ball import certified_radius, exact_ball
    from scancheck.oracles.engine import solve
    from scancheck.oracles.multiprecision import solve_multiprecision
    from scancheck.oracles.systems import GenericSystem

    class Balls(GenericSystem):
        def constant(self, values: FloatArray) -> Any:
            return exact_ball(values)

    op, sizes = OPS[name], SIZES | HEADS["shared"] | {"T": 3}
    tensors, bars = problem(name, sizes)
    switches = switches_of(op, True)
    balls = solve(Balls(), op, tensors, switches, bars)
    exact = solve_multiprecision(op, tensors, switches, bars, bits=200)
    for kind in ("outputs", "gradients"):
        for tensor, ball in getattr(balls, kind).items():
            hi, lo, _ = getattr(exact, kind)[tensor].components
            off = np.abs((ball.value - hi) - lo)
            assert (off <= certified_radius(ball)).all(), tensor


@pytest.mark.parametrize(
    ("name", "sizes", "words"),
    [
        ("gated_delta_rule", {"H": 2, "HV": 3}, "HV: expected a multiple of H = 2"),
        ("retention", {"H": 2, "HV": 3}, "HV: expected a multiple of H = 2; got 3"),
        ("ssd", {"H": 3, "G": 2}, "size G: expected a divisor of H = 3; got 2"),
        ("gated_delta_product", {"H": 2, "M": 0}, "size M: expected at least one step"),
    ],
)
def test_heads_that_cannot_be_shared_are_refused(
    name: str, sizes: dict[str, int], words: str
) -> None:
    """The message names the size, what it must divide or be divided by, and itself."""
    from scancheck.oracles.fp64 import solve_fp64

    tensors, _ = problem(name, SIZES | sizes)
    with pytest.raises(CaseInvalid, match=words):
        solve_fp64(OPS[name], tensors, switches_of(OPS[name]))


def test_constants_are_those_of_the_definitions() -> None:
    """Scale K^-1/2, exact decays of retention, slopes of lightning attention."""
    sizes = SIZES | {"H": 2, "HV": 4, "K": 16}
    assert OPS["rwkv7"].constants(sizes) == OPS["ssd"].constants(sizes) == {}
    for name in set(STEPS) - {"rwkv7", "ssd"}:
        assert OPS[name].constants(sizes)["scale"].tolist() == [0.25]
    decays = OPS["retention"].constants(sizes)["decay"].tolist()
    assert decays == [31 / 32, 63 / 64, 127 / 128, 255 / 256]
    logs = OPS["lightning_attention"].constants(sizes)["log_decay"].tolist()
    assert logs == [0.0, -2.0, -4.0, -6.0]
    for name in ("linear_attention", "normalized_linear_attention", "delta_rule"):
        assert OPS[name].constants(sizes)["decay"].tolist() == [1.0] * 4


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_constants_and_inputs_have_different_names(op: Op) -> None:
    """No constant hides an input or a switch of a tile."""
    sizes = {name: 2 for name in op.size_names}
    names = {spec.name for spec in op.inputs} | set(op.switches)
    assert names.isdisjoint(op.constants(sizes))


@pytest.mark.parametrize(("keys", "held"), [(16, True), (7, False)])
def test_a_constant_is_rounded_where_a_format_does_not_hold_it(
    keys: int, held: bool
) -> None:
    """K^-1/2 is a power of two, or costs one rounding in the compute format."""
    from scancheck.bounds.error_system import ErrorSystem
    from scancheck.bounds.moment_system import MomentSystem
    from scancheck.bounds.rules import rules_for
    from scancheck.contract import Contract

    rules = rules_for(Contract(), "fp32")
    values = OPS["gla"].constants({"K": keys})["scale"]
    error = ErrorSystem(rules).constant(values).error
    moment = MomentSystem(rules).constant(values).moment
    if held:
        assert (error == 0.0).all() and (moment == 0.0).all()
    else:
        off = np.abs(values.astype(np.float32) - values)
        assert (off > 0.0).all() and (off <= error).all()
        assert (error <= 2.0**-24 * values + rules.eta).all()
        assert (moment >= (2.0**-24 * values) ** 2).all()


SPOILED = [
    ("kda", "q", "g"),
    ("gated_delta_product", "w", "g"),
    ("gated_delta_rule", "q", "g"),
    ("delta_rule", "p", "beta"),
    ("rwkv7", "p", "b"),
    ("gla", "z", "gv"),
    ("ssd", "r", "C"),
]


@pytest.mark.parametrize(("name", "part", "named"), SPOILED)
def test_a_wrong_pullback_is_seen(
    against_torch: Compare, name: str, part: str, named: str
) -> None:
    """The comparison itself can fail: a cotangent of the wrong sign is named."""
    op, sizes = OPS[name], SIZES | HEADS["shared"]

    def pullback(
        tile: Mapping[str, Any], lowered: Lowered, bars: Cotangents
    ) -> dict[str, Any]:
        spoiled = {part: -getattr(bars, part)}
        return op.lower_pullback(tile, lowered, replace(bars, **spoiled))

    tensors, bars = problem(name, sizes)
    wrong = against_torch(
        replace(op, lower_pullback=pullback),
        STEPS[name],
        tensors,
        switches_of(op),
        bars,
        operations(sizes),
        ("generic",),
    )
    assert f"generic {named}" in wrong
