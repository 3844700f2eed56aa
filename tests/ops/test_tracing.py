"""Traced pullbacks against those that ops write by hand, and what they refuse."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scancheck.errors import CaseInvalid
from scancheck.ops import OPS
from scancheck.ops.custom import LIKE, custom_op
from scancheck.ops.tracing import Traced, pull_back
from scancheck.oracles.ball import Ball, certified_radius, exact_ball
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System

FloatArray = NDArray[np.float64]
SIZES = {"B": 2, "T": 7, "H": 2, "HV": 4, "K": 3, "V": 5}


def drawn(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, FloatArray]:
    """Values of unit order, gates negative."""
    rng = np.random.default_rng(0)
    found = {name: rng.normal(size=shape) / 2 for name, shape in shapes.items()}
    return {n: -np.abs(x) if n in ("g", "gk", "w") else x for n, x in found.items()}


@pytest.mark.parametrize("name", [n for n in LIKE if n != "rwkv6"])
def test_a_trace_gives_the_gradients_of_the_hand_written_pullback(name: str) -> None:
    """Every op that a user's own may be like, its lowering traced."""
    op = OPS[name]
    axes = {s.name: s.axes for s in op.inputs if s.name not in (op.state, "gv")}
    traced = custom_op(
        "traced",
        op.lower,
        inputs={n: " ".join(a) for n, a in axes.items()},
        like=name,
        rank_one=not op.diagonal,
    ).op
    # The constants of the op itself: a decay of one, or of each head.
    traced = replace(traced, constants=op.constants)
    tensors = drawn({n: tuple(SIZES[a] for a in a_) for n, a_ in axes.items()})
    state = next(s for s in op.inputs if s.name == op.state)
    tensors[op.state] = np.ones([SIZES[axis] for axis in state.axes])
    bars = {s.name: np.ones([SIZES[a] for a in s.axes]) for s in op.outputs}
    ours, theirs = (
        solve(Fp64System(), one, tensors, {}, bars).gradients for one in (op, traced)
    )
    assert set(ours) == set(theirs)
    for tensor, ball in theirs.items():
        reach = certified_radius(ball) + certified_radius(ours[tensor])
        assert (np.abs(ball.value - ours[tensor].value) <= reach).all(), tensor
        assert ball.value.any(), tensor


def number(*shape: int) -> Ball:
    """A ball of random values."""
    return exact_ball(np.random.default_rng(len(shape)).normal(size=shape))


CHANGES: dict[str, Any] = {
    "sum": lambda x: x * x + -x,
    "broadcast": lambda x: x + x[:, [0] * 3],
    "one_minus": lambda x: x.one_minus() * x,
    "exp": lambda x: x.exp(),
    "softplus": lambda x: x.softplus(),
    "sigmoid": lambda x: x.sigmoid(),
    "silu": lambda x: x.silu(),
    "reciprocal": lambda x: x.reciprocal(),
    "joined": lambda x: x.joined(x * x, 1),
    "summed": lambda x: (x * x).sum((0, 2)),
    "shape": lambda x: x.transpose(2, 0, 1).reshape(8, 1) * x.reshape(8, 1),
    "repeats": lambda x: x[[0, 1, 1, 0]] * x[[1, 0, 0, 1]],
    "new axis": lambda x: x[:, None] * x[:, :, None],
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_operation_against_differences(change: str) -> None:
    """The cotangent of a weighted sum is its slope along random directions."""
    function, rng = CHANGES[change], np.random.default_rng(1)
    x = number(2, 1, 4)
    leaf = Traced(x)
    result = function(leaf)
    weights = rng.normal(size=result.shape)
    (bar,) = pull_back([(result, exact_ball(weights))], [leaf])
    step, direction = 1e-5, rng.normal(size=x.shape)

    def total(at: FloatArray) -> float:
        return float((function(exact_ball(at)).value * weights).sum())

    slope = total(x.value + step * direction) - total(x.value - step * direction)
    assert bar.shape == x.shape
    assert (bar.value * direction).sum() == pytest.approx(slope / (2 * step), rel=1e-7)


@pytest.mark.parametrize("index", [[0, 1, 1], [1], [0], slice(1)])
def test_an_index_that_leaves_entries_out_is_refused(index: Any) -> None:
    """Its cotangent would need zeros that no number makes."""
    leaf = Traced(number(2, 3))
    result = leaf[(index,)]
    bar = exact_ball(np.ones(result.shape))
    with pytest.raises(CaseInvalid, match="lower: expected"):
        pull_back([(result, bar)], [leaf])


def test_what_nothing_depends_on_has_no_cotangent() -> None:
    """None, which the engine takes for zero."""
    used, unused = Traced(number(2)), Traced(number(2))
    result = used * used
    found = pull_back([(result, number(2))], [used, unused])
    assert found[1] is None
    assert (found[0].value == 2 * used.value.value * number(2).value).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"like": "ssd"}, "like: expected one of linear_attention"),
        ({"ranges": {"b": (1.0, 1.0)}}, r"ranges: .*got 'b': \(1.0, 1.0\)"),
        ({"ranges": {"x": (0.0, 1.0)}}, "ranges: expected an input of own"),
        ({"inputs": {"q": "B T H K"}}, "inputs: expected values v"),
        (
            {"inputs": {"v": "B T H V", "q": "B T X"}},
            "inputs: q: expected axes of B T H K V; got 'B T X'",
        ),
    ],
)
def test_a_definition_that_makes_no_sense_is_told(
    changes: dict[str, Any], words: str
) -> None:
    """The message names the argument, what was expected and what came."""
    given: dict[str, Any] = {
        "inputs": {"q": "B T H K", "v": "B T HV V", "b": "B T HV"},
        "like": "simple_gla",
    }
    with pytest.raises(CaseInvalid, match=words):
        custom_op("own", OPS["simple_gla"].lower, **given | changes)
