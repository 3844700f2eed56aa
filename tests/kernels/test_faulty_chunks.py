"""Planted bugs of ops in chunks: right without their hazard, wrong with it.

Bounds are those of test_faulty_steps, twice: a term meets one rounding more in its
decay, and the inverse of a chunk counts as often as what is erased.
"""

import pytest
import torch
from step_references import Tensors, reference
from test_chunk_forms import drawn

from scancheck.kernel import Kernel
from scancheck.kernels.faulty.chunk_catalog import (
    CHUNK,
    chunk_controls,
    chunk_faulty,
)

# Module -> sizes and the size of gates such that its hazard is absent.
HARMLESS: dict[str, dict[str, float]] = {
    "upper_triangle_not_masked": {"gates": 1.0},
    "inverse_cut_short": {"T": 8},
    "inclusive_gate_for_exclusive": {"gates": 0.0},
    "carried_state_decayed_twice": {"gates": 0.0},
    "state_of_last_chunk_only": {"T": CHUNK},
    "no_state_between_chunks": {"T": CHUNK},
    "heads_taken_for_tokens": {"T": 5},
}
# Module -> where it stands out, in any format.
HARMFUL: dict[str, dict[str, float]] = {
    "upper_triangle_not_masked": {"gates": 100.0},
    "inverse_cut_short": {"T": 16, "alike": 0.9},
    "heads_taken_for_tokens": {"T": 4, "H": 4},
}
# Module -> the output that its hazard leaves right.
LEFT_RIGHT = {
    "upper_triangle_not_masked": "final",
    "inclusive_gate_for_exclusive": "final",
    "carried_state_decayed_twice": "final",
}


def module_of(kernel: Kernel) -> str:
    """The bug's module."""
    return kernel.name.rpartition(".")[2]


def inputs(
    op: str,
    dtype: torch.dtype,
    *,
    T: float = 37,
    H: float = 2,
    gates: float = 0.1,
    alike: float = 0.5,
) -> Tensors:
    """Two rows of four value heads, K = 3, V = 5; erased keys more or less alike."""
    sizes = {"T": int(T), "H": 4 if op == "rwkv6" else int(H)}
    tensors = drawn(op, dtype, gates, **sizes)
    if "beta" in tensors:
        first = tensors["k"][:, :1]
        tensors["k"] = ((1.0 - alike) * tensors["k"] + alike * first).to(dtype)
    return tensors


def wrong_outputs(kernel: Kernel, tensors: Tensors) -> set[str]:
    """The outputs, "o" and "final", with an element beyond the bound."""
    wide = {name: x.double() for name, x in tensors.items()}
    signed = ("g", "w")
    magnitudes = {n: x if n in signed else x.abs() for n, x in wide.items()}
    loop = reference(kernel.op)
    truth = loop(kernel.op, wide, False)
    terms = loop(kernel.op, magnitudes, True)
    got = kernel.call(**tensors)
    fp64 = tensors["v"].dtype == torch.float64
    roundings = 2 * tensors["v"].shape[1] * (2 * 3 + 10)
    bound = 1.1 * roundings * (2.0**-53 * 2 if fp64 else 2.0**-24)
    wrong = set()
    for name, x, exact, size in zip(("o", "final"), got, truth, terms, strict=True):
        assert x.shape == exact.shape
        own = torch.finfo(x.dtype).eps / 2
        allowed = bound * size + own * (exact.abs() + bound * size)
        if not bool(((x.double() - exact).abs() <= allowed).all()):
            wrong.add(name)
    return wrong


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("H", [1, 2, 4])
@pytest.mark.parametrize("kernel", chunk_controls(), ids=lambda kernel: kernel.name)
def test_control_is_right(kernel: Kernel, H: int, dtype: torch.dtype) -> None:
    """The control is within the bound in every format, with and without groups."""
    for T in (0, 1, CHUNK, 37):
        assert not wrong_outputs(kernel, inputs(kernel.op, dtype, T=T, H=H))


@pytest.mark.parametrize("kernel", chunk_controls(), ids=lambda kernel: kernel.name)
def test_gradients_of_a_control_are_rounded_once(kernel: Kernel) -> None:
    """In bf16 they are those of the same values in fp32, rounded: no more, no less."""
    short = inputs(kernel.op, torch.bfloat16)
    found = []
    for tensors in (short, {name: x.float() for name, x in short.items()}):
        leaves = [x.detach().requires_grad_() for x in tensors.values()]
        outputs = kernel.call(**dict(zip(tensors, leaves, strict=True)))
        seeds = [torch.ones_like(x) for x in outputs]
        found.append(torch.autograd.grad(outputs, leaves, seeds))
    for name, once, wide in zip(short, *found, strict=True):
        assert torch.equal(once, wide.to(once.dtype)), name


@pytest.mark.parametrize("kernel", chunk_faulty(), ids=lambda kernel: kernel.name)
def test_right_without_its_hazard(kernel: Kernel) -> None:
    """Where its hazard is absent, a planted bug computes the op."""
    options = HARMLESS[module_of(kernel)]
    assert not wrong_outputs(kernel, inputs(kernel.op, torch.float32, **options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel", chunk_faulty(), ids=lambda kernel: kernel.name)
def test_wrong_with_its_hazard(kernel: Kernel, dtype: torch.dtype) -> None:
    """A planted bug stands out of rounding in every format that it declares."""
    options = HARMFUL.get(module_of(kernel), {})
    expected = {"o", "final"} - {LEFT_RIGHT.get(module_of(kernel), "")}
    tensors = inputs(kernel.op, dtype, **options)
    assert wrong_outputs(kernel, tensors) == expected


@pytest.mark.parametrize("kernel", chunk_faulty(), ids=lambda kernel: kernel.name)
def test_differentiable(kernel: Kernel) -> None:
    """Both outputs of a planted bug can be differentiated for every input."""
    tensors = inputs(kernel.op, torch.float32)
    leaves = [x.requires_grad_() for x in tensors.values()]
    outputs = kernel.call(**tensors)
    seeds = [torch.ones_like(x) for x in outputs]
    gradients = torch.autograd.grad(outputs, leaves, seeds)
    assert all(bool(x.abs().sum() > 0) for x in gradients)
