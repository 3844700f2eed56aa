"""selective_scan's lowering, epilogue and pullbacks against torch autograd."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scancheck.ops.selective_scan import SELECTIVE_SCAN

FloatArray = NDArray[np.float64]
Compare = Callable[..., list[str]]

LAYOUTS = ("time", "grouped", "constant")
OPTIONAL = ("D", "z", "delta_bias", "initial_state")


def reference(
    u: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    delta_softplus: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition, token by token; softplus exact, without a threshold."""
    batch, channels, steps = u.shape
    d = delta if delta_bias is None else delta + delta_bias[:, None]
    if delta_softplus:
        d = torch.logaddexp(d, torch.zeros_like(d))
    keys, readout = (_expanded(x, batch, channels, steps) for x in (B, C))
    state = u.new_zeros(batch, channels, A.shape[1])
    if initial_state is not None:
        state = initial_state
    rows = []
    for t in range(steps):
        step = d[:, :, t, None]
        drive = step * u[:, :, t, None] * keys[..., t]
        state = torch.exp(step * A) * state + drive
        rows.append((state * readout[..., t]).sum(-1))
    y = torch.stack(rows, 2) if rows else u * 0.0
    if D is not None:
        y = y + D[:, None] * u
    if z is not None:
        y = y * z * torch.sigmoid(z)
    return y, state


def _expanded(x: torch.Tensor, batch: int, channels: int, steps: int) -> torch.Tensor:
    """B or C as [B, D, N, L]."""
    if x.ndim == 2:
        return x[None, :, :, None].expand(batch, *x.shape, steps)
    if x.ndim == 3:
        return x[:, None].expand(batch, channels, *x.shape[1:])
    return x.repeat_interleave(channels // x.shape[1], dim=1)


def problem(
    seed: int,
    layouts: tuple[str, str],
    optional: tuple[str, ...] = OPTIONAL,
    sizes: tuple[int, int, int, int, int] = (2, 4, 5, 3, 2),
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Tensors and cotangents of B, D, L, N, G; steps of every size and sign."""
    rng = np.random.default_rng(seed)
    B, D, L, N, G = sizes
    shapes = {"time": (B, N, L), "grouped": (B, G, N, L), "constant": (D, N)}
    tensors = {
        "u": rng.normal(size=(B, D, L)),
        "delta": rng.normal(size=(B, D, L)) * 2,
        "A": -rng.uniform(0.01, 2, (D, N)),
        "B": rng.normal(size=shapes[layouts[0]]),
        "C": rng.normal(size=shapes[layouts[1]]),
        "D": rng.normal(size=D),
        "z": rng.normal(size=(B, D, L)) * 4,
        "delta_bias": rng.normal(size=D),
        "initial_state": rng.normal(size=(B, D, N)),
    }
    kept = {n: v for n, v in tensors.items() if n in optional or n not in OPTIONAL}
    bars = {
        "y": rng.normal(size=(B, D, L)),
        "last_state": rng.normal(size=(B, D, N)),
    }
    return kept, bars


def operations(sizes: tuple[int, int, int, int, int] = (2, 4, 5, 3, 2)) -> int:
    """Roundings on the longest path: steps, sums over all axes, functions."""
    B, D, L, N, _ = sizes
    return 16 * (L + 1) + B * D * L + N + 32


@pytest.mark.parametrize("softplus", [False, True], ids=["plain", "softplus"])
@pytest.mark.parametrize("keys", LAYOUTS)
@pytest.mark.parametrize("readout", LAYOUTS)
def test_agrees_with_autograd_in_every_layout(
    against_torch: Compare, keys: str, readout: str, softplus: bool
) -> None:
    """B and C may each vary in time, by group, or not at all."""
    tensors, bars = problem(3, (keys, readout))
    switches = {"delta_softplus": softplus}
    wrong = against_torch(
        SELECTIVE_SCAN, reference, tensors, switches, bars, operations()
    )
    assert wrong == []


@pytest.mark.parametrize(
    "present",
    [
        tuple(n for n, on in zip(OPTIONAL, chosen, strict=True) if on)
        for chosen in product([False, True], repeat=4)
    ],
    ids=lambda names: "+".join(names) or "none",
)
@pytest.mark.parametrize("softplus", [False, True], ids=["plain", "softplus"])
def test_agrees_with_autograd_without_optional_tensors(
    against_torch: Compare, present: tuple[str, ...], softplus: bool
) -> None:
    """Any of D, z, delta_bias and initial_state may be left out."""
    tensors, bars = problem(4, ("time", "time"), present)
    switches = {"delta_softplus": softplus}
    wrong = against_torch(
        SELECTIVE_SCAN, reference, tensors, switches, bars, operations()
    )
    assert wrong == []


@pytest.mark.parametrize("bars", ["y", "last_state", "none"])
@pytest.mark.parametrize("keys", LAYOUTS)
def test_agrees_with_autograd_through_one_output(
    against_torch: Compare, keys: str, bars: str
) -> None:
    """A gradient through one output alone, or none, is right too."""
    tensors, every = problem(5, (keys, keys))
    chosen = {n: v for n, v in every.items() if n == bars}
    switches = {"delta_softplus": True}
    wrong = against_torch(
        SELECTIVE_SCAN, reference, tensors, switches, chosen, operations()
    )
    assert wrong == []


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    layouts=st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS)),
    present=st.sets(st.sampled_from(OPTIONAL)).map(sorted).map(tuple),
    softplus=st.booleans(),
    B=st.integers(0, 2),
    L=st.integers(0, 4),
    N=st.integers(1, 3),
    G=st.integers(1, 3),
    per_group=st.integers(1, 2),
)
def test_agrees_with_autograd_at_every_size(
    against_torch: Compare,
    seed: int,
    layouts: tuple[str, str],
    present: tuple[str, ...],
    softplus: bool,
    B: int,
    L: int,
    N: int,
    G: int,
    per_group: int,
) -> None:
    """No size breaks it: no token, no batch row, one of each, any number of groups."""
    sizes = (B, G * per_group, L, N, G)
    tensors, bars = problem(seed, layouts, present, sizes)
    switches = {"delta_softplus": softplus}
    wrong = against_torch(
        SELECTIVE_SCAN, reference, tensors, switches, bars, operations(sizes)
    )
    assert wrong == []


def test_a_wrong_pullback_is_seen(against_torch: Compare) -> None:
    """The comparison itself can fail: du without its way around the scan is named."""

    def pullback(tile: Any, o: Any, ybar: Any) -> Any:
        obar, gradients = SELECTIVE_SCAN.epilogue_pullback(tile, o, ybar)
        return obar, {n: v for n, v in gradients.items() if n != "u"}

    op = replace(SELECTIVE_SCAN, epilogue_pullback=pullback)
    tensors, bars = problem(3, ("time", "time"))
    switches = {"delta_softplus": True}
    wrong = against_torch(op, reference, tensors, switches, bars, operations())
    assert wrong == ["generic u", "fp64 u"]


def test_empty_sequence_hands_the_state_through() -> None:
    """With L = 0 the last state is the initial one, and nothing else has a gradient."""
    from scancheck.oracles.fp64 import solve_fp64

    tensors, bars = problem(6, ("grouped", "constant"), OPTIONAL, (2, 4, 0, 3, 2))
    solution = solve_fp64(SELECTIVE_SCAN, tensors, {"delta_softplus": True}, bars)
    state = solution.outputs["last_state"].value
    assert (state == tensors["initial_state"]).all()
    gradients = {n: ball.value for n, ball in solution.gradients.items()}
    assert (gradients.pop("initial_state") == bars["last_state"]).all()
    assert set(gradients) == set(tensors) - {"initial_state"}
    assert all(not bar.any() for bar in gradients.values())
