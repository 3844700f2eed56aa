"""Planted bugs of ops with heads: right without their hazard, wrong with it.

Bounds: on its way through a token a term meets two sums over K (one to erase, one to
read), a decay that is off by two roundings and six more operations, so that after T
tokens it is off by at most T (2 K + 10) roundings, and the truth's own in fp64.
"""

import pytest
import torch
from step_references import Tensors, reference

from scancheck.kernel import Kernel
from scancheck.kernels.faulty.step_catalog import STEP_OPS, step_controls, step_faulty

CONTROLS = [kernel for kernel in step_controls() if kernel.op in STEP_OPS]
BUGS = [kernel for kernel in step_faulty() if kernel.op in STEP_OPS]

# Module -> sizes and the gate such that its hazard is absent; it stands out otherwise.
HARMLESS: dict[str, dict[str, float]] = {
    "key_heads_interleaved": {"H": 4},
    "erased_from_undecayed_state": {"gate": 0.0},
    "gate_on_update_only": {"gate": 0.0},
    "read_before_update": {"T": 0},
    "final_state_transposed": {"V": 2},
}
# Module -> the output that its hazard leaves right, if any.
LEFT_RIGHT = {"read_before_update": "final", "final_state_transposed": "o"}


def module_of(kernel: Kernel) -> str:
    """The bug's module."""
    return kernel.name.rpartition(".")[2]


def draw(
    op: str,
    dtype: torch.dtype,
    *,
    T: int = 6,
    H: int = 2,
    V: int = 3,
    gate: float = -1.0,
) -> Tensors:
    """Two rows of four value heads with K = 3, of either sign; gates up to `gate`."""
    generator = torch.Generator().manual_seed(T)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator) + 0.25

    def signed(*shape: int) -> torch.Tensor:
        return uniform(*shape) * torch.randn(*shape, generator=generator).sign()

    tensors = {"q": signed(2, T, H, 3), "k": signed(2, T, H, 3)}
    tensors["v"] = signed(2, T, 4, V)
    if op not in ("linear_attention", "simple_gla"):
        tensors["beta"] = uniform(2, T, 4) / 1.25
    if op in ("simple_gla", "gated_delta_rule"):
        tensors["g"] = gate * uniform(2, T, 4)
    if op == "kda":
        tensors["g"] = gate * uniform(2, T, 4, 3)
    tensors = {name: x.to(dtype) for name, x in tensors.items()}
    state = torch.float64 if dtype == torch.float64 else torch.float32
    return tensors | {"initial_state": signed(2, 4, 3, V).to(state)}


def wrong_outputs(kernel: Kernel, tensors: Tensors) -> set[str]:
    """The outputs, "o" and "final", with an element beyond the bound."""
    wide = {name: x.double() for name, x in tensors.items()}
    magnitudes = {name: x if name == "g" else x.abs() for name, x in wide.items()}
    loop = reference(kernel.op)
    truth = loop(kernel.op, wide, False)
    terms = loop(kernel.op, magnitudes, True)
    got = kernel.call(**tensors)
    fp64 = tensors["v"].dtype == torch.float64
    roundings = tensors["v"].shape[1] * (2 * 3 + 10)
    bound = 1.1 * roundings * (2.0**-53 * 2 if fp64 else 2.0**-24)
    wrong = set()
    for name, x, exact, size in zip(("o", "final"), got, truth, terms, strict=True):
        assert x.shape == exact.shape
        own = torch.finfo(x.dtype).eps / 2
        allowed = bound * size + own * (exact.abs() + bound * size)
        if bool(((x.double() - exact).abs() > allowed).any()):
            wrong.add(name)
    return wrong


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("H", [1, 2, 4])
@pytest.mark.parametrize("kernel", CONTROLS, ids=lambda kernel: kernel.name)
def test_control_is_right(kernel: Kernel, H: int, dtype: torch.dtype) -> None:
    """The control is within the bound in every format, with and without groups."""
    for T in (0, 1, 6):
        assert not wrong_outputs(kernel, draw(kernel.op, dtype, T=T, H=H))


@pytest.mark.parametrize("kernel", BUGS, ids=lambda kernel: kernel.name)
def test_right_without_its_hazard(kernel: Kernel) -> None:
    """Where its hazard is absent, a planted bug computes the op."""
    options = HARMLESS[module_of(kernel)]
    tensors = draw(kernel.op, torch.float32, **options)  # type: ignore[arg-type]
    assert not wrong_outputs(kernel, tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel", BUGS, ids=lambda kernel: kernel.name)
def test_wrong_with_its_hazard(kernel: Kernel, dtype: torch.dtype) -> None:
    """A planted bug stands out of rounding in every format that it declares."""
    expected = {"o", "final"} - {LEFT_RIGHT.get(module_of(kernel), "")}
    assert wrong_outputs(kernel, draw(kernel.op, dtype)) == expected


@pytest.mark.parametrize("kernel", BUGS, ids=lambda kernel: kernel.name)
def test_differentiable(kernel: Kernel) -> None:
    """Both outputs of a planted bug can be differentiated for every input."""
    tensors = draw(kernel.op, torch.float32)
    leaves = [x.requires_grad_() for x in tensors.values()]
    outputs = kernel.call(**tensors)
    seeds = [torch.ones_like(x) for x in outputs]
    gradients = torch.autograd.grad(outputs, leaves, seeds)
    assert all(bool(x.abs().sum() > 0) for x in gradients)
