"""Strangers' kernels in our calling form: right where arithmetic is exact."""

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan

from scancheck.adapters import (
    accelerated_scan,
    jax_associative_scan,
    mambapy_pscan,
    mambapy_selective_scan,
    torch_associative_scan,
)
from scancheck.adapters.catalog import adapters
from scancheck.contract import Contract
from scancheck.formats import FloatArray
from scancheck.kernel import Kernel
from scancheck.ops import OPS
from scancheck.recipes.inputs import Inputs
from scancheck.runner import accepted_parameters, execute

LINEAR_SCAN, SELECTIVE_SCAN = OPS["linear_scan"], OPS["selective_scan"]
# The many kernels of these packages have tests of their own, and those in Triton.
OTHERS = ("fla.", "flash_scan", "mamba_ssm.", "mlstm_kernels.", "transformers.")
OTHERS += ("accelerated_scan.scalar",)
BY_NAME = {k.name: k for k in adapters() if not k.name.startswith(OTHERS)}
AVAILABLE = [kernel for kernel in BY_NAME.values() if kernel.unavailable is None]
LINEAR = [kernel for kernel in AVAILABLE if kernel.op == "linear_scan"]
SELECTIVE = [kernel for kernel in AVAILABLE if kernel.op == "selective_scan"]


def exact_case(
    batch: int, steps: int, channels: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """a of signs and zeros, b and cotangents of small integers: every sum is exact."""
    source = np.random.default_rng(steps)
    shape = (batch, steps, channels)
    a = source.integers(-1, 2, shape).astype(np.float64)
    b = source.integers(-8, 9, shape).astype(np.float64)
    bar = source.integers(-8, 9, shape).astype(np.float64)
    return a, b, bar


def reference(a: FloatArray, b: FloatArray, bar: FloatArray) -> dict[str, FloatArray]:
    """h and the gradients of a and b, token by token."""
    h, da, db = np.zeros_like(b), np.zeros_like(b), np.zeros_like(b)
    for t in range(b.shape[1]):
        h[:, t] = b[:, t] + (a[:, t] * h[:, t - 1] if t else 0.0)
    passed = np.zeros_like(b[:, 0])
    for t in reversed(range(b.shape[1])):
        db[:, t] = bar[:, t] + passed
        da[:, t] = db[:, t] * (h[:, t - 1] if t else 0.0)
        passed = a[:, t] * db[:, t]
    return {"h": h, "a": da, "b": db}


@pytest.mark.parametrize("steps", [*range(1, 18), 63, 64, 65, 100])
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("kernel", LINEAR, ids=lambda kernel: kernel.name)
def test_exact_at_every_length(kernel: Kernel, dtype: str, steps: int) -> None:
    """Outputs and gradients equal the plain loop where no operation rounds."""
    if kernel.name == "accelerated_scan.ref" and steps == 1:
        return  # it raises there: a finding, tested below
    a, b, bar = exact_case(2, steps, 3)
    given = Inputs(tensors={"a": a, "b": b}, switches={})
    outcome = execute(kernel, LINEAR_SCAN, given, dtype, cotangents={"h": bar})
    want = reference(a, b, bar)
    assert outcome.problem is None
    assert outcome.returned == ("h",)
    assert (outcome.outputs["h"] == want["h"]).all()
    if kernel.name == "torch.associative_scan.pointwise":
        return  # its gate gradient is wrong: a finding, not this test's promise
    assert (outcome.gradients["a"] == want["a"]).all()
    assert (outcome.gradients["b"] == want["b"]).all()


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("kernel", SELECTIVE, ids=lambda kernel: kernel.name)
def test_selective_scan_is_exact_without_rounding(kernel: Kernel, dtype: str) -> None:
    """With decays of 0 and 1, and unit decays for gradients, the sums are exact."""
    source = np.random.default_rng(3)
    sizes = {"B": 2, "D": 3, "N": 4, "L": 11}
    shape = {"u": "BDL", "delta": "BDL", "A": "DN", "B": "BNL", "C": "BNL", "D": "D"}
    tensors = {
        name: source.integers(1, 5, [sizes[axis] for axis in axes]).astype(np.float64)
        for name, axes in shape.items()
    }
    tensors["A"] = np.where(tensors["A"] > 2, -np.inf, 0.0)
    outcome = execute(
        kernel, SELECTIVE_SCAN, Inputs(tensors=tensors, switches={}), dtype
    )
    u, delta, keys, queries = (tensors[name] for name in ("u", "delta", "B", "C"))
    drive = (delta * u)[:, :, None] * keys[:, None]  # [B, D, N, L]
    state = np.where(tensors["A"][None, :, :, None] == 0, drive.cumsum(-1), drive)
    y = (state * queries[:, None]).sum(2) + tensors["D"][:, None] * u
    assert outcome.problem is None
    assert outcome.returned == ("y",)
    assert (outcome.outputs["y"] == y).all()
    tensors["A"] = np.zeros_like(tensors["A"])
    bar = source.integers(-4, 5, u.shape).astype(np.float64)
    outcome = execute(
        kernel,
        SELECTIVE_SCAN,
        Inputs(tensors=tensors, switches={}),
        dtype,
        cotangents={"y": bar},
    )
    reached = np.flip(np.flip(bar[:, :, None] * queries[:, None], -1).cumsum(-1), -1)
    du = (reached * keys[:, None]).sum(2) * delta + tensors["D"][:, None] * bar
    assert (outcome.gradients["u"] == du).all()
    assert (outcome.gradients["D"] == (bar * u).sum((0, 2))).all()


def test_strangers_take_and_return_what_they_have() -> None:
    """They know no logarithms and no initial state; only a loop declares its order."""
    assert set(BY_NAME) == {
        "accelerated_scan.ref",
        "jax.lax.associative_scan",
        "mambapy.pscan",
        "mambapy.selective_scan",
        "mambapy.selective_scan_seq",
        "torch.associative_scan.generic",
        "torch.associative_scan.pointwise",
    }
    for kernel in BY_NAME.values():
        taken = {"a", "b"}
        if kernel.op == "selective_scan":
            taken = {"u", "delta", "A", "B", "C", "D"}
        assert accepted_parameters(kernel, OPS[kernel.op]) == taken
        loop = kernel.name == "mambapy.selective_scan_seq"
        assert (kernel.contract or Contract()).structure.kind == (
            "sequential" if loop else "unknown"
        )
        assert kernel.gradients


def test_accelerated_scan_ref_refuses_one_token() -> None:
    """Its tree has no level for a single token: a finding, which an update may end."""
    kernel = BY_NAME["accelerated_scan.ref"]
    if kernel.unavailable is None:
        one = torch.ones(1, 1, 2)
        with pytest.raises(RuntimeError, match="invalid for input of size"):
            kernel.call(a=one, b=one)


def test_availability_is_the_truth() -> None:
    """What is called available runs, and what is not raises for the reason given."""
    pointwise = BY_NAME["torch.associative_scan.pointwise"]
    device = pointwise.devices[0] if pointwise.unavailable is None else "cpu"
    a = torch.ones(1, 4, 2, device=device)
    assert BY_NAME["torch.associative_scan.generic"].unavailable is None
    if pointwise.unavailable is None:
        assert pointwise.call(a=a, b=a).shape == a.shape
    else:
        with pytest.raises(ValueError, match="need to be on CUDA or XPU"):
            pointwise.call(a=a, b=a)
        assert "CUDA or XPU" in pointwise.unavailable
        assert torch.__version__ in pointwise.unavailable
    for kernel in BY_NAME.values():
        package = kernel.name.partition(".")[0]
        if package != "torch":
            assert (kernel.unavailable is None) == (find_spec(package) is not None)


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 3, 0)])
def test_torch_loses_tokens_without_elements(shape: tuple[int, ...]) -> None:
    """An empty batch is refused, and torch itself still gives the reason for that."""
    empty = torch.ones(shape)
    _, h = associative_scan(
        torch_associative_scan.combine, (empty, empty), dim=1, combine_mode="generic"
    )
    assert h.shape != shape
    with pytest.raises(ValueError, match="loses tokens"):
        torch_associative_scan.linear_scan("generic", a=empty, b=empty)


@pytest.mark.parametrize(
    ("installed", "generic", "pointwise"),
    [
        ("2.4.1", False, False),
        ("2.5.0", True, False),
        ("2.13.0+cpu", True, False),
        ("2.14.0", True, True),
        ("2.14.1+cu130", True, True),
        ("2.15.0a0+git1234", True, True),
        ("3.0.0", True, True),
    ],
)
def test_versions_decide(
    monkeypatch: pytest.MonkeyPatch, installed: str, generic: bool, pointwise: bool
) -> None:
    """Each mode is there from the torch version on that takes CPU tensors."""
    monkeypatch.setattr(torch_associative_scan, "version", lambda name: installed)
    for mode, runs in (("generic", generic), ("pointwise", pointwise)):
        reason = torch_associative_scan.unavailable(mode)
        assert (reason is None) == runs
        assert reason is None or f"torch {installed}" in reason
        on_card = torch_associative_scan.unavailable(mode, "cuda")
        assert (on_card is None) == generic  # both modes, as early as the first


@pytest.mark.parametrize("card", [False, True])
def test_a_mode_for_cards_alone_runs_where_one_is(
    monkeypatch: pytest.MonkeyPatch, card: bool
) -> None:
    """torch 2.13's "pointwise" is offered with a CUDA device, and only on it."""
    monkeypatch.setattr(torch_associative_scan, "version", lambda name: "2.13.0")
    monkeypatch.setattr(
        torch_associative_scan, "device_unavailable", lambda: None if card else "none"
    )
    kernel = torch_associative_scan.torch_associative_scan("pointwise")
    assert kernel.devices == ("cuda",)
    assert (kernel.unavailable is None) == card
    both = torch_associative_scan.torch_associative_scan("generic")
    assert both.devices == ("cpu", "cuda")
    assert both.unavailable is None


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        (accelerated_scan, "accelerated-scan", "accelerated-scan"),
        (jax_associative_scan, "jax", "jax"),
        (mambapy_pscan, "mambapy", "mambapy"),
        (mambapy_selective_scan, "mambapy", "mambapy"),
    ],
)
def test_missing_package_is_the_reason(
    monkeypatch: pytest.MonkeyPatch, module: Any, package: str, extra: str
) -> None:
    """Without its package a kernel stays listed, with how to install it."""
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert module.unavailable() == (
        f"{package} is not installed; pip install 'scancheck[{extra}]'"
    )
