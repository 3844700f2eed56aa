"""Bounds of ops that read before the update: chunks begin where their tokens do."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scancheck.bounds.budget import budget_for
from scancheck.formats import FORMATS, round_array
from scancheck.kernel import Kernel
from scancheck.kernels.models.catalog import model
from scancheck.kernels.models.chunk_catalog import chunk_model
from scancheck.ops import OPS
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System

FloatArray = NDArray[np.float64]
CHUNK = 8
KERNELS = [
    chunk_model("rwkv6", "log_diff", chunk=CHUNK),
    chunk_model("rwkv6", "log_diff", chunk=CHUNK, block=4),
    chunk_model("rwkv6", "log_diff", chunk=CHUNK, state="bf16"),
    model("rwkv6", "sequential", "plain", state="bf16", state_every=CHUNK),
]


def drawn(gates: float, T: int) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Tensors in fp32 with gates of one size, and cotangents."""
    rng = np.random.default_rng(T)
    keyed = (2, T, 2, 3)
    tensors = {name: rng.normal(size=keyed) for name in ("r", "k")}
    tensors["v"] = rng.normal(size=(2, T, 2, 4))
    tensors["w"] = -gates * rng.uniform(0.5, 1.0, keyed)
    tensors["u"] = rng.normal(size=(2, 3))
    tensors["initial_state"] = rng.normal(size=(2, 2, 3, 4))
    bars = {"o": rng.normal(size=(2, T, 2, 4))}
    bars["final_state"] = rng.normal(size=(2, 2, 3, 4))
    fp32 = FORMATS["fp32"]
    return (
        {name: round_array(fp32, x) for name, x in tensors.items()},
        {name: round_array(fp32, x) for name, x in bars.items()},
    )


def computed(
    kernel: Kernel, tensors: dict[str, FloatArray], bars: dict[str, FloatArray]
) -> dict[str, FloatArray]:
    """Outputs and gradients of the kernel in fp32."""
    leaves = {
        name: torch.tensor(x, dtype=torch.float32).requires_grad_()
        for name, x in tensors.items()
    }
    outputs = kernel.call(**leaves)
    seeds = [torch.tensor(x, dtype=torch.float32) for x in bars.values()]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), seeds)
    found = dict(zip(bars, outputs, strict=True))
    found |= {f"d{n}": x for n, x in zip(leaves, gradients, strict=True)}
    return {name: x.detach().double().numpy() for name, x in found.items()}


@pytest.mark.parametrize("T", [1, 8, 27])
@pytest.mark.parametrize("gates", [60.0, 0.5])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_error_is_within_the_budget(kernel: Kernel, gates: float, T: int) -> None:
    """Strong gates keep what a chunk's sums of gates err by in its last state alone.

    Counted from one token later, that state was the first of a chunk, with no sum.
    """
    tensors, bars = drawn(gates, T)
    op, contract = OPS["rwkv6"], kernel.contract
    assert contract is not None
    budget = budget_for(op, tensors, {}, contract, "fp32", bars)
    truth = solve(Fp64System(), op, tensors, {}, bars)
    exact = truth.outputs | {f"d{n}": x for n, x in truth.gradients.items()}
    allowed = budget.outputs | {f"d{n}": x for n, x in budget.gradients.items()}
    for name, x in computed(kernel, tensors, bars).items():
        error = np.abs(x - exact[name].value)
        ratio = error / (allowed[name].error + exact[name].radius)
        assert ratio.max() <= 1.0, (name, float(ratio.max()))
