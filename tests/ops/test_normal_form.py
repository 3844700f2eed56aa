"""The normal form itself: specs by rank, and the recurrence an op lowers to."""

from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scancheck.errors import CaseInvalid
from scancheck.ops import OPS
from scancheck.ops.normal_form import (
    Cotangents,
    Lowered,
    Number,
    Op,
    TensorSpec,
    spec_of,
    state_inputs,
    state_outputs,
)

FloatArray = NDArray[np.float64]

G, T, K, L = 2, 5, 3, 4


# An op whose tensors are the fields of the normal form themselves.


def lower(tile: Mapping[str, Any], carry: Any) -> tuple[Lowered, Any]:
    """The tensors as they are; the carry counts tiles."""
    lowered = Lowered(w=tile["w"], v=tile["v"], k=tile.get("k"), r=tile.get("r"))
    return lowered, (carry or 0) + 1


def lower_pullback(
    tile: Mapping[str, Any], lowered: Lowered, cotangents: Cotangents
) -> dict[str, Any]:
    """The cotangents, summed where a tensor is one for all keys or lanes."""
    bars = {"v": cotangents.v}
    for name in ("w", "k", "r"):
        if name in tile:
            bar, like = getattr(cotangents, name), tile[name]
            for axis in (2, 3):
                if like.shape[axis] == 1 and bar.shape[axis] > 1:
                    total = bar.sum(axis)
                    shape = [*bar.shape]
                    shape[axis] = 1
                    bar = total.reshape(*shape)
            bars[name] = bar
    return bars


def bare_op(w: tuple[str, str], k: str, r: str) -> Op:
    """The op for decays of these axes, and keys and readouts with these lanes."""
    named = {"one": "One", "K": "K", "L": "L"}
    return Op(
        name="bare",
        time_axis="T",
        size_names=("G", "T", "K", "L"),
        inputs=(
            TensorSpec(name="w", axes=("G", "T", named[w[0]], named[w[1]])),
            TensorSpec(name="v", axes=("G", "T", "L")),
            TensorSpec(name="k", axes=("G", "T", "K", named[k]), required=False),
            TensorSpec(name="r", axes=("G", "T", "K", named[r]), required=False),
            TensorSpec(name="s", axes=("G", "K", "L"), kind="state"),
        ),
        outputs=(
            TensorSpec(name="o", axes=("G", "T", "L")),
            TensorSpec(name="last", axes=("G", "K", "L"), kind="state"),
        ),
        state="s",
        forms=(),
        switches=(),
        lower=lower,
        epilogue=lambda tile, o: o,
        epilogue_pullback=lambda tile, o, bar: (bar, {}),
        lower_pullback=lower_pullback,
        state_in=lambda s, sizes: s,
        state_out=lambda s, sizes: s,
        group_shape=lambda sizes: (sizes["G"], sizes["K"], sizes["L"]),
    )


def by_hand(
    tensors: Mapping[str, FloatArray], bars: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """The recurrence and its adjoint as the architecture writes them, densely."""
    full = {n: np.broadcast_to(tensors[n], (G, T, K, L)) for n in ("w", "k", "r")}
    v, states = tensors["v"], [tensors["s"]]
    for t in range(T):
        drive = full["k"][:, t] * v[:, t, None]
        states.append(full["w"][:, t] * states[-1] + drive)
    o = [(full["r"][:, t] * states[t + 1]).sum(1) for t in range(T)]
    out = {"o": np.stack(o, 1), "last": states[-1]}
    wide = {n: np.zeros((G, T, K, L)) for n in ("w", "k", "r")}
    vbar, back = np.zeros_like(v), bars["last"]
    for t in reversed(range(T)):
        above = bars["o"][:, t, None]
        g = back + full["r"][:, t] * above
        wide["w"][:, t] = g * states[t]
        wide["k"][:, t] = g * v[:, t, None]
        wide["r"][:, t] = states[t + 1] * above
        vbar[:, t] = (full["k"][:, t] * g).sum(1)
        back = full["w"][:, t] * g
    out |= {"d v": vbar, "d s": back}
    for name, bar in wide.items():
        like = tensors[name].shape
        axes = tuple(axis for axis in (2, 3) if like[axis] < bar.shape[axis])
        out[f"d {name}"] = bar.sum(axes, keepdims=True)
    return out


@pytest.mark.parametrize(
    ("w", "k", "r"),
    [
        pytest.param(w, k, r, id=f"{w[0]}-{w[1]}-{k}-{r}")
        for w, k, r in product(
            [("one", "one"), ("K", "one"), ("one", "L"), ("K", "L")],
            ["one", "L"],
            ["one", "L"],
        )
    ],
)
def test_recurrence_and_adjoint(w: tuple[str, str], k: str, r: str) -> None:
    """Decays per head, key, lane or both; keys and readouts shared by lanes or not."""
    from scancheck.oracles.ball import certified_radius, exact_ball
    from scancheck.oracles.engine import solve
    from scancheck.oracles.fp64 import Fp64System
    from scancheck.oracles.systems import GenericSystem

    class Balls(GenericSystem):
        def constant(self, values: FloatArray) -> Any:
            return exact_ball(values)

    rng = np.random.default_rng(0)
    sizes = {"one": 1, "K": K, "L": L}
    tensors = {
        "w": rng.normal(size=(G, T, sizes[w[0]], sizes[w[1]])),
        "v": rng.normal(size=(G, T, L)),
        "k": rng.normal(size=(G, T, K, sizes[k])),
        "r": rng.normal(size=(G, T, K, sizes[r])),
        "s": rng.normal(size=(G, K, L)),
    }
    bars = {"o": rng.normal(size=(G, T, L)), "last": rng.normal(size=(G, K, L))}
    want = by_hand(tensors, bars)
    for system in (Balls(), Fp64System()):
        solution = solve(system, bare_op(w, k, r), tensors, {}, bars)
        found = dict(solution.outputs)
        found |= {f"d {name}": bar for name, bar in solution.gradients.items()}
        assert set(found) == set(want)
        for name, ball in found.items():
            off = np.abs(ball.value - want[name])
            assert (off <= certified_radius(ball) + 1e-13).all(), name


PARTS = [
    pytest.param(parts, id="+".join(parts) or "diagonal")
    for parts in (
        (),
        ("rank",),
        ("z",),
        ("before",),
        ("rank", "z"),
        ("rank", "z", "before"),
    )
]


@pytest.mark.parametrize("parts", PARTS)
def test_every_part_of_the_recurrence(parts: tuple[str, ...]) -> None:
    """Rank-one transitions, value-side decay, and a read before the update.

    Outputs and gradients of the step-by-step engine against autograd in fp64.
    """
    from scancheck.oracles.ball import certified_radius, exact_ball
    from scancheck.oracles.engine import solve
    from scancheck.oracles.systems import GenericSystem

    class Balls(GenericSystem):
        def constant(self, values: FloatArray) -> Any:
            return exact_ball(values)

    rng = np.random.default_rng(4)
    shapes = {
        "w": (G, T, K, 1),
        "v": (G, T, L),
        "k": (G, T, K, 1),
        "r": (G, T, K, 1),
        "s": (G, K, L),
    }
    if "rank" in parts:
        shapes |= {"p": (G, T, K, 1), "q": (G, T, K, 1)}
    if "z" in parts:
        shapes["z"] = (G, T, 1, L)
    tensors = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    bars = {"o": rng.normal(size=(G, T, L)), "last": rng.normal(size=(G, K, L))}

    def general(tile: Mapping[str, Any], carry: Any) -> tuple[Lowered, Any]:
        given = {name: tile[name] for name in ("p", "q", "z") if name in tile}
        plain, after = lower(tile, carry)
        return replace(plain, **given, reads_before="before" in parts), after

    def pullback(
        tile: Mapping[str, Any], lowered: Lowered, cotangents: Cotangents
    ) -> dict[str, Any]:
        bars = lower_pullback(tile, lowered, cotangents)
        given = (name for name in ("p", "q", "z") if name in tile)
        return bars | {name: getattr(cotangents, name) for name in given}

    bare = bare_op(("K", "one"), "one", "one")
    axes = {"p": ("G", "T", "K", "One"), "q": ("G", "T", "K", "One")}
    axes["z"] = ("G", "T", "One", "L")
    more = tuple(TensorSpec(name=n, axes=axes[n]) for n in axes if n in tensors)
    op = replace(
        bare, inputs=bare.inputs + more, lower=general, lower_pullback=pullback
    )
    solution = solve(Balls(), op, tensors, {}, bars)
    found = {**solution.outputs, **solution.gradients}

    leaves = {n: torch.tensor(x, requires_grad=True) for n, x in tensors.items()}
    state, outs = leaves["s"], []
    for t in range(T):
        before = state
        moved = leaves["w"][:, t] * state
        if "rank" in parts:
            read = torch.einsum("gk,gkl->gl", leaves["q"][:, t, :, 0], state)
            moved = moved + leaves["p"][:, t] * read[:, None]
        if "z" in parts:
            moved = moved * leaves["z"][:, t]
        state = moved + leaves["k"][:, t] * leaves["v"][:, t, None]
        seen = before if "before" in parts else state
        outs.append((leaves["r"][:, t] * seen).sum(1))
    want = {"o": torch.stack(outs, 1), "last": state}
    total = sum((want[n] * torch.tensor(bar)).sum() for n, bar in bars.items())
    gradients = torch.autograd.grad(total, list(leaves.values()))
    want |= dict(zip(leaves, gradients, strict=True))
    assert set(found) == set(want)
    for name, ball in found.items():
        off = np.abs(ball.value - want[name].detach().numpy())
        assert (off <= certified_radius(ball) + 1e-12).all(), name


def test_missing_keys_and_readouts_are_ones() -> None:
    """Without k and r a single key is written and read as it is."""
    from scancheck.oracles.engine import solve
    from scancheck.oracles.fp64 import Fp64System

    rng = np.random.default_rng(1)
    shape = (G, T, 1, L)
    tensors = {
        "w": rng.normal(size=shape),
        "v": rng.normal(size=(G, T, L)),
        "s": rng.normal(size=(G, 1, L)),
    }
    op = bare_op(("K", "L"), "L", "L")
    bare = solve(Fp64System(), op, tensors, {}, {"o": np.ones((G, T, L))})
    ones = tensors | {"k": np.ones(shape), "r": np.ones(shape)}
    full = solve(Fp64System(), op, ones, {}, {"o": np.ones((G, T, L))})
    for name, ball in {**bare.outputs, **bare.gradients}.items():
        other = {**full.outputs, **full.gradients}[name]
        assert (ball.value == other.value).all()


@pytest.mark.parametrize("entries", [1, 8, 24, 10**6])
def test_tiles_change_no_value(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    """However small a tile is, every output and gradient has the same bits."""
    from scancheck.oracles import engine
    from scancheck.oracles.fp64 import Fp64System

    rng = np.random.default_rng(2)
    tensors = {
        "w": rng.normal(size=(G, 9, K, L)),
        "v": rng.normal(size=(G, 9, L)),
        "k": rng.normal(size=(G, 9, K, 1)),
        "r": rng.normal(size=(G, 9, K, L)),
        "s": rng.normal(size=(G, K, L)),
    }
    bars = {"o": rng.normal(size=(G, 9, L)), "last": rng.normal(size=(G, K, L))}
    op = bare_op(("K", "L"), "one", "L")
    whole = engine.solve(Fp64System(), op, tensors, {}, bars)
    monkeypatch.setattr(engine, "TILE_ENTRIES", entries)
    tiled = engine.solve(Fp64System(), op, tensors, {}, bars)
    for name, ball in {**whole.outputs, **whole.gradients}.items():
        other = {**tiled.outputs, **tiled.gradients}[name]
        assert (ball.value == other.value).all()


def test_the_carry_of_a_lowering_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op that lowers with a carry gets the one its tile before returned."""
    from scancheck.oracles import engine
    from scancheck.oracles.fp64 import Fp64System

    seen: list[Any] = []

    def counting(tile: Mapping[str, Any], carry: Any) -> tuple[Lowered, Any]:
        seen.append(carry)
        return lower(tile, carry)

    monkeypatch.setattr(engine, "TILE_ENTRIES", 2)
    tensors = {
        "w": np.ones((1, 6, 1, 1)),
        "v": np.ones((1, 6, 1)),
        "s": np.zeros((1, 1, 1)),
    }
    op = replace(bare_op(("K", "L"), "L", "L"), lower=counting)
    engine.solve(Fp64System(), op, tensors, {})
    assert seen == [None, 1, 2]
    seen.clear()
    engine.solve(Fp64System(), op, tensors, {}, {"o": np.ones((1, 6, 1))})
    assert seen == [None, 1, 2, 2, 1, None]


def test_specs_are_found_by_name_and_rank() -> None:
    """A tensor with several layouts is told by its number of axes."""
    op = OPS["selective_scan"]
    assert spec_of(op, "B").axes == ("B", "N", "L")
    assert spec_of(op, "B", 3).kind == "storage"
    grouped, constant = spec_of(op, "B", 4), spec_of(op, "C", 2)
    assert (grouped.axes, grouped.kind) == (("B", "G", "N", "L"), "storage")
    assert (constant.axes, constant.kind) == (("D", "N"), "state")
    assert grouped.variants == constant.variants == ()
    assert spec_of(op, "last_state").axes == ("B", "D", "N")


@pytest.mark.parametrize(
    ("name", "rank", "words"),
    [
        ("X", None, r"no tensor 'X'; expected one of u, delta, A, B"),
        ("B", 1, r"B has axes \['B', 'N', 'L'\]; got 1 axes"),
        ("u", 2, r"u has axes \['B', 'D', 'L'\]; got 2 axes"),
    ],
)
def test_a_spec_that_does_not_exist_is_named(
    name: str, rank: int | None, words: str
) -> None:
    """The message says which tensors, or which axes, the op has."""
    with pytest.raises(CaseInvalid, match=words):
        spec_of(OPS["selective_scan"], name, rank)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_an_op_is_consistent(op: Op) -> None:
    """Names are unique, sizes known, forms optional, and a state comes in and out."""
    names = [spec.name for spec in op.inputs + op.outputs] + list(op.switches)
    assert len(set(names)) == len(names)
    for spec in op.inputs + op.outputs:
        for axes in (spec.axes, *(axes for axes, _ in spec.variants)):
            assert set(axes) <= set(op.size_names)
    assert op.time_axis in op.outputs[0].axes
    parts = zip(state_inputs(op), state_outputs(op), strict=True)
    for initial, final in ((spec_of(op, name), final) for name, final in parts):
        assert op.time_axis not in final.axes
        assert initial.axes == final.axes
        assert initial.kind == final.kind == "state"
    for form in op.forms:
        assert all(not spec_of(op, name).required for name in form)


def test_every_number_keeps_the_protocol() -> None:
    """Balls, double-doubles, error bounds and moments are Numbers of one kind."""
    from scancheck.bounds.error_number import ErrorNumber
    from scancheck.bounds.moment_number import MomentNumber
    from scancheck.oracles.ball import Ball
    from scancheck.oracles.double_double import DoubleDouble

    wanted = {name for name in dir(Number) if not name.startswith("_")}
    wanted |= {"__add__", "__mul__", "__neg__", "__getitem__"}
    for kind in (Ball, DoubleDouble, ErrorNumber, MomentNumber):
        assert wanted - set(dir(kind)) == set(), kind.__name__


def test_fields_of_cotangents_are_those_of_a_tile() -> None:
    """Each cotangent belongs to a field of the lowered tile."""
    assert {f.name for f in fields(Cotangents)} <= {f.name for f in fields(Lowered)}
