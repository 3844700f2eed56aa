"""linear_scan's lowering and pullbacks against torch autograd in float64."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scancheck.errors import CaseInvalid
from scancheck.ops import OPS, op_named
from scancheck.ops.linear_scan import LINEAR_SCAN
from scancheck.ops.normal_form import Op

FloatArray = NDArray[np.float64]
Compare = Callable[..., list[str]]


def reference(
    b: torch.Tensor,
    a: torch.Tensor | None = None,
    g: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition, step by step."""
    decay = torch.exp(g) if g is not None else a
    assert decay is not None
    state = b.new_zeros(b.shape[0], b.shape[2])
    if initial_state is not None:
        state = initial_state
    rows = []
    for t in range(b.shape[1]):
        state = decay[:, t] * state + b[:, t]
        rows.append(state)
    return torch.stack(rows, 1) if rows else b, state


def problem(
    seed: int, form: str, B: int, T: int, D: int, *, state: bool
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Tensors and cotangents; decays of either sign and beyond one, resets, zeros."""
    rng = np.random.default_rng(seed)
    decay = rng.choice([0.0, 1.0, -0.9, 1.05, 0.5], (B, T, D))
    decay = decay * rng.uniform(0.9, 1.0, (B, T, D))
    gate = -rng.exponential(size=(B, T, D))
    tensors = {form: decay if form == "a" else gate, "b": rng.normal(size=(B, T, D))}
    if state:
        tensors["initial_state"] = rng.normal(size=(B, D))
    bars = {"h": rng.normal(size=(B, T, D)), "final_state": rng.normal(size=(B, D))}
    return tensors, bars


@pytest.mark.parametrize("form", ["a", "g"])
@pytest.mark.parametrize("state", [False, True], ids=["from_zero", "from_state"])
@pytest.mark.parametrize("bars", ["both", "h", "final_state", "none"])
def test_agrees_with_autograd(
    against_torch: Compare, form: str, state: bool, bars: str
) -> None:
    """Outputs and every gradient, through either output, in both forms."""
    tensors, every = problem(1, form, 2, 17, 3, state=state)
    chosen = {n: v for n, v in every.items() if bars in ("both", n)}
    assert (
        against_torch(LINEAR_SCAN, reference, tensors, {}, chosen, operations=8 * 17)
        == []
    )


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    form=st.sampled_from(["a", "g"]),
    B=st.integers(0, 3),
    T=st.integers(0, 9),
    D=st.integers(1, 4),
    state=st.booleans(),
)
def test_agrees_with_autograd_at_every_size(
    against_torch: Compare, seed: int, form: str, B: int, T: int, D: int, state: bool
) -> None:
    """No size breaks it: no token, no batch row, one of each."""
    tensors, bars = problem(seed, form, B, T, D, state=state)
    wrong = against_torch(
        LINEAR_SCAN, reference, tensors, {}, bars, operations=8 * (T + 1)
    )
    assert wrong == []


def test_a_wrong_pullback_is_seen(against_torch: Compare) -> None:
    """The comparison itself can fail: a gate gradient without its decay is named."""

    def pullback(tile, lowered, cotangents):  # type: ignore[no-untyped-def]
        found = LINEAR_SCAN.lower_pullback(tile, lowered, cotangents)
        return found | {"g": cotangents.w[:, :, 0, :]}

    wrong_op: Op = replace(LINEAR_SCAN, lower_pullback=pullback)
    tensors, bars = problem(1, "g", 2, 17, 3, state=True)
    wrong = against_torch(wrong_op, reference, tensors, {}, bars, operations=8 * 17)
    assert wrong == ["generic g", "fp64 g"]


def test_empty_sequence_hands_the_state_through() -> None:
    """With T = 0 the final state is the initial one, and so is its gradient."""
    from scancheck.oracles.fp64 import solve_fp64

    state, bar = np.array([[1.5, -2.0]]), np.array([[3.0, 4.0]])
    empty = np.zeros((1, 0, 2))
    tensors = {"a": empty, "b": empty, "initial_state": state}
    solution = solve_fp64(LINEAR_SCAN, tensors, {}, {"final_state": bar})
    assert (solution.outputs["final_state"].value == state).all()
    assert (solution.gradients["initial_state"].value == bar).all()
    assert solution.outputs["h"].shape == solution.gradients["a"].shape == (1, 0, 2)


def test_ops_are_found_by_name() -> None:
    """The registry gives each op under its own name, and lists them for any other."""
    assert all(op_named(name) is op and op.name == name for name, op in OPS.items())
    with pytest.raises(CaseInvalid, match=r"'scan' is unknown.*linear_scan, selective"):
        op_named("scan")
