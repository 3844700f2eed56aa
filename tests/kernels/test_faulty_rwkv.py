"""Planted bugs of RWKV-6 and RWKV-7: right without their hazard, wrong with it."""

import pytest
import torch
from torch import Tensor

from scancheck.kernel import Kernel
from scancheck.kernels.faulty.step_catalog import RWKV_OPS, step_controls, step_faulty

CONTROLS = [kernel for kernel in step_controls() if kernel.op in RWKV_OPS]
BUGS = [kernel for kernel in step_faulty() if kernel.op in RWKV_OPS]
HARMLESS = {"seen_after_decay": "w", "bonus_dropped": "u"}  # the input that is zero
Tensors = dict[str, Tensor]


def draw(op: str, T: int = 6, dtype: torch.dtype = torch.float64) -> Tensors:
    """Two rows of three heads, K = 4, V = 5; decays from exp(-1) to 1."""
    generator = torch.Generator().manual_seed(T)
    keyed = ("r", "w", "k", "a", "b") if op == "rwkv7" else ("r", "w", "k")
    tensors = {n: torch.randn(2, T, 3, 4, generator=generator) for n in keyed}
    tensors["w"] = -torch.sigmoid(tensors["w"])
    tensors["v"] = torch.randn(2, T, 3, 5, generator=generator)
    if op == "rwkv6":
        tensors["u"] = torch.randn(3, 4, generator=generator)
    tensors["initial_state"] = torch.randn(2, 3, 4, 5, generator=generator)
    return {name: x.to(dtype) for name, x in tensors.items()}


def by_definition(op: str, x: Tensors) -> tuple[Tensor, Tensor]:
    """The recurrence one head and token at a time, as matrices."""
    rows, heads = x["v"].shape[0], x["v"].shape[2]
    o, final = torch.zeros_like(x["v"]), x["initial_state"].clone()
    for b in range(rows):
        for h in range(heads):
            S = final[b, h]
            for t in range(x["v"].shape[1]):
                r, k, v = (x[n][b, t, h] for n in ("r", "k", "v"))
                decay = torch.diag(torch.exp(x["w"][b, t, h]))
                if op == "rwkv6":
                    bonus = torch.diag(x["u"][h]) @ torch.outer(k, v)
                    o[b, t, h] = (S + bonus).T @ r / 2.0  # K = 4
                    S = decay @ S + torch.outer(k, v)
                else:
                    left, right = x["b"][b, t, h], x["a"][b, t, h]
                    S = (decay + torch.outer(left, right)) @ S + torch.outer(k, v)
                    o[b, t, h] = S.T @ r
            final[b, h] = S
    return o, final


def off(kernel: Kernel, tensors: Tensors) -> list[bool]:
    """Whether each output is off by more than the roundings of a few fp64 sums."""
    pairs = zip(kernel.call(**tensors), by_definition(kernel.op, tensors), strict=True)
    return [
        bool(((x - y).abs() > 1e-13 * (1.0 + y.abs().amax())).any())
        if x.numel()
        else False
        for x, y in pairs
    ]


@pytest.mark.parametrize("T", [0, 1, 6])
@pytest.mark.parametrize("kernel", CONTROLS, ids=lambda kernel: kernel.name)
def test_control_is_right(kernel: Kernel, T: int) -> None:
    """The loops without a fault are the ops, of any length."""
    assert off(kernel, draw(kernel.op, T)) == [False, False]


@pytest.mark.parametrize("kernel", BUGS, ids=lambda kernel: kernel.name)
def test_a_bug_is_its_hazard_alone(kernel: Kernel) -> None:
    """Wrong on ordinary tensors, right where what it gets wrong is zero."""
    tensors = draw(kernel.op)
    assert off(kernel, tensors)[0]
    name = HARMLESS[kernel.name.rpartition(".")[2]]
    harmless = tensors | {name: torch.zeros_like(tensors[name])}
    assert off(kernel, harmless) == [False, False]


@pytest.mark.parametrize("kernel", [*CONTROLS, *BUGS], ids=lambda kernel: kernel.name)
def test_differentiable(kernel: Kernel) -> None:
    """Both outputs have gradients with respect to every input."""
    tensors = draw(kernel.op, dtype=torch.float32)
    leaves = [x.requires_grad_() for x in tensors.values()]
    outputs = kernel.call(**tensors)
    seeds = [torch.ones_like(x) for x in outputs]
    gradients = torch.autograd.grad(outputs, leaves, seeds, allow_unused=True)
    assert all(x is None or bool(x.isfinite().all()) for x in gradients)
    assert gradients[list(tensors).index("initial_state")] is not None
