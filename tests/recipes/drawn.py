"""Tensors of small cases, and the decays and states that they stand for."""

from typing import Any

import numpy as np
import pytest

from scancheck.case import make_case
from scancheck.formats import FORMATS, FloatArray
from scancheck.recipes import build

CHUNK = 16
FORMS = (("linear_scan", "a"), ("linear_scan", "g"), ("selective_scan", None))
EVERY_FORM = pytest.mark.parametrize(("op", "form"), FORMS)
# Formats of 8 bits get the same values, but cannot hold every hazard in them.
DTYPES = pytest.mark.parametrize("dtype", [n for n, f in FORMATS.items() if f.bits > 8])
LINEAR_FORMS = pytest.mark.parametrize("form", ["a", "g"])


def tensors(
    recipe: str,
    op: str = "linear_scan",
    form: str | None = "a",
    *,
    dtype: str = "fp32",
    steps: int = 8 * CHUNK + 5,
    seed: int = 1,
    **options: Any,
) -> dict[str, FloatArray]:
    """The tensors of a case with 2 rows, 12 channels and chunks of 16."""
    options = {"initial_state": True, "chunk": CHUNK, **options}
    if op == "linear_scan":
        sizes = {"B": 2, "T": steps, "D": 12}
        options["form"] = form
    else:
        sizes = {"B": 2, "L": steps, "D": 12, "N": 2}
    return build(
        make_case(op, sizes, dtype=dtype, recipe=recipe, seed=seed, options=options)
    ).tensors


def decays(made: dict[str, FloatArray], *, softplus: bool = True) -> FloatArray:
    """The decay of every step: [B, T, D], or [B, L, D, N] for selective_scan."""
    if "a" in made:
        return made["a"]
    if "g" in made:
        return np.exp(made["g"])
    step = made["delta"] + made["delta_bias"][:, None]
    if softplus:
        step = np.logaddexp(0.0, step)
    return np.exp(step.transpose(0, 2, 1)[..., None] * made["A"])


def states(made: dict[str, FloatArray], *, softplus: bool = True) -> tuple[Any, Any]:
    """States and their magnitudes M after each step, in longdouble."""
    kept = decays(made, softplus=softplus)
    if "b" in made:
        drive, state = made["b"], made["initial_state"]
    else:
        step = made["delta"] + made["delta_bias"][:, None]
        step = np.logaddexp(0.0, step) if softplus else step
        drive = (step * made["u"]).transpose(0, 2, 1)[..., None] * made["B"].transpose(
            0, 2, 1
        )[:, :, None]
        state = made["initial_state"]
    state = state.astype(np.longdouble)
    size = np.abs(state)
    all_states, all_sizes = [], []
    for t in range(drive.shape[1]):
        state = kept[:, t] * state + drive[:, t]
        size = np.abs(kept[:, t]) * size + np.abs(drive[:, t])
        all_states.append(state)
        all_sizes.append(size)
    return np.stack(all_states, 1), np.stack(all_sizes, 1)
