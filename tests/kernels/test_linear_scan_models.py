"""linear_scan models as differentiable torch functions."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from scancheck.contract import resolve
from scancheck.formats import FORMATS, round_array
from scancheck.kernel import Kernel
from scancheck.kernels.models.catalog import model, models

KERNELS = [kernel for kernel in models() if kernel.op == "linear_scan"]
COMPUTED_IN_FP32 = [
    pytest.param(kernel, dtype, id=f"{kernel.name}-{dtype}")
    for kernel in KERNELS
    for dtype in ("fp32", "bf16")
    if kernel.contract is not None
    and kernel.contract.state == "compute"
    and resolve(kernel.contract, dtype).compute == "fp32"
]
STATES = ("final_state", "dinitial_state")
Tensors = dict[str, torch.Tensor]


def name_of(kernel: Kernel) -> str:
    """What a parametrised test calls a kernel."""
    return kernel.name


def draw(form: str, dtype: torch.dtype, T: int = 37, B: int = 2, D: int = 3) -> Tensors:
    """Inputs of one form, with the initial state in fp32 (fp64 when dtype is)."""
    generator = torch.Generator().manual_seed(T)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    gate = -normal(B, T, D).abs() if form == "g" else 0.2 * normal(B, T, D) + 0.8
    state = torch.float64 if dtype == torch.float64 else torch.float32
    return {
        form: gate.to(dtype),
        "b": normal(B, T, D).to(dtype),
        "initial_state": normal(B, D).to(state),
    }


def forms_of(kernel: Kernel) -> list[str]:
    """The parametrisations a model takes."""
    return ["g"] if ".log_" in kernel.name else ["a", "g"]


def reference(tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition as a float64 loop that autograd can follow."""
    a = tensors["g"].exp() if "g" in tensors else tensors["a"]
    s, states = tensors["initial_state"], []
    for t in range(tensors["b"].shape[1]):
        s = a[:, t] * s + tensors["b"][:, t]
        states.append(s)
    return torch.stack(states, 1), s


def with_gradients(
    function: Any, tensors: Tensors, cotangents: tuple[torch.Tensor, ...]
) -> Tensors:
    """Outputs h and final_state and the gradient of each input, by its name."""
    leaves = {name: x.clone().requires_grad_() for name, x in tensors.items()}
    outputs = function(**leaves)
    seeds = [c.to(out.dtype) for c, out in zip(cotangents, outputs, strict=True)]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), seeds)
    named = dict(zip(("h", "final_state"), outputs, strict=True))
    named |= {f"d{n}": x for n, x in zip(leaves, gradients, strict=True)}
    return {name: x.detach() for name, x in named.items()}


@pytest.mark.parametrize(("kernel", "dtype"), COMPUTED_IN_FP32)
def test_outputs_and_gradients_within_bound(kernel: Kernel, dtype: str) -> None:
    """Outputs and gradients differ from float64 autograd by rounding alone.

    The same loop on absolute values gives the sum of magnitudes of the terms of each
    output and gradient. A term passes at most 3 T + 3 operations in a scan, two scans
    in the gradient of a gate, and T decays of 1.01 u when they are exponentials; made
    of sums of log gates an exponent errs by at most (2 C + 1) G u more, G = sum |g|.
    Over the whole length it does so twice, and each of T log-sums errs by u times its
    own size, at most G + max |log b| + log (T + 1), and by three roundings.
    """
    storage = FORMATS[dtype]
    torch_dtype = getattr(torch, storage.torch_name)
    for form in forms_of(kernel):
        tensors = draw(form, torch_dtype)
        T = tensors["b"].shape[1]
        generator = torch.Generator().manual_seed(1)
        cotangents = (
            torch.randn(2, T, 3, generator=generator).to(torch_dtype),
            torch.randn(2, 3, generator=generator),
        )
        wide = {name: x.double() for name, x in tensors.items()}
        positive = {n: x if n == "g" else x.abs() for n, x in wide.items()}
        got = with_gradients(kernel.call, tensors, cotangents)
        truth = with_gradients(lambda **x: reference(x), wide, cotangents)
        terms = with_gradients(
            lambda **x: reference(x), positive, tuple(c.abs() for c in cotangents)
        )
        roundings = 2.0 * (3 * T + 3) + 2.0
        if form == "g":
            total = float(wide["g"].abs().sum(1).max())
            roundings += 2 * T + (2 * T + 1) * total
            if "log_full" in kernel.name:
                driven = [tensors["b"], tensors["initial_state"], *cotangents]
                logs = max(float(x.double().abs().log().abs().max()) for x in driven)
                log_sum = total + logs + math.log(T + 1) + 3
                roundings += (2 * T + 1) * total + 2 * (T + 1) * log_sum
        u = FORMATS["fp32"].unit_roundoff
        for name, x in truth.items():
            own = FORMATS["fp32"] if name in STATES else storage
            allowed = 1.01 * roundings * u * terms[name].abs()
            allowed += own.unit_roundoff * (x.abs() + allowed) + own.eta
            error = (got[name].double() - x).abs()
            assert bool((error <= allowed).all()), (name, form)
            assert got[name].dtype == getattr(torch, own.torch_name)


@pytest.mark.parametrize("kernel", KERNELS, ids=name_of)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("sizes", [(0, 2, 3), (1, 2, 3), (5, 0, 3), (0, 0, 3)])
def test_edge_sizes(kernel: Kernel, dtype: str, sizes: tuple[int, int, int]) -> None:
    """T = 0, T = 1 and B = 0 give outputs and gradients of the right shapes.

    Without a step the final state is the initial one, and so is its cotangent.
    """
    T, B, D = sizes
    tensors = draw(
        forms_of(kernel)[0], getattr(torch, FORMATS[dtype].torch_name), *sizes
    )
    cotangents = torch.ones(B, T, D), torch.full((B, D), 1.5)
    got = with_gradients(kernel.call, tensors, cotangents)
    assert got["h"].shape == (B, T, D)
    assert got["h"].dtype == tensors["b"].dtype
    assert got["final_state"].dtype == torch.float32
    for name, x in tensors.items():
        assert got[f"d{name}"].shape == x.shape
        assert got[f"d{name}"].dtype == x.dtype
    if T == 0:
        assert torch.equal(got["final_state"], tensors["initial_state"])
        assert torch.equal(got["dinitial_state"], cotangents[1])


@pytest.mark.parametrize("kernel", KERNELS, ids=name_of)
def test_absent_initial_state_is_zero(kernel: Kernel) -> None:
    """Without an initial state the result is that of zeros."""
    tensors = draw(forms_of(kernel)[0], torch.bfloat16)
    tensors["initial_state"].zero_()
    expected = kernel.call(**tensors)
    del tensors["initial_state"]
    for x, y in zip(kernel.call(**tensors), expected, strict=True):
        assert torch.equal(x, y)


def test_inputs_are_left_alone() -> None:
    """Outputs share no memory with the inputs, whatever their strides."""
    kernel = model("linear_scan", "sequential", "plain")
    tensors = draw("a", torch.float32)
    strided = {
        n: x.transpose(0, -1).contiguous().transpose(0, -1) for n, x in tensors.items()
    }
    before = {name: x.clone() for name, x in strided.items()}
    h, final = kernel.call(**strided)
    for x, y in zip(kernel.call(**tensors), (h, final), strict=True):
        assert torch.equal(x, y)
    h.fill_(9.0)
    final.fill_(9.0)
    assert all(torch.equal(before[name], x) for name, x in strided.items())
    empty = draw("a", torch.float32, T=0)
    kernel.call(**empty)[1].fill_(9.0)
    assert not bool((empty["initial_state"] == 9.0).any())


def test_storage_rounds_once() -> None:
    """bf16 outputs are the fp64 states rounded once, which a cast by torch is not.

    The state 1 + 2**-8 + 2**-40 lies just above a midpoint of bf16 and rounds in fp32
    to the midpoint itself.
    """
    kernel = model("linear_scan", "sequential", "plain", compute="fp64")
    state = torch.tensor([[1.0 + 2.0**-8]], dtype=torch.float32)
    one, tiny = torch.ones(1, 1, 1).bfloat16(), torch.full((1, 1, 1), 2.0**-40)
    h, final = kernel.call(a=one, b=tiny.bfloat16(), initial_state=state)
    assert float(h) == 1.0 + 2.0**-7
    assert torch.equal(final, state)


@pytest.mark.parametrize("compute", ["fp16", "bf16", "storage"])
def test_narrow_computation_is_the_scalar_loop(compute: str) -> None:
    """Computed in 16 bits, every state is a 16-bit number from 16-bit operations."""
    name = "bf16" if compute == "storage" else compute
    fmt = FORMATS[name]
    kernel = model("linear_scan", "sequential", "plain", compute=compute)
    tensors = draw("a", getattr(torch, fmt.torch_name))
    h, _ = kernel.call(**tensors)
    a, b = tensors["a"].double().numpy(), tensors["b"].double().numpy()
    s = tensors["initial_state"].double().numpy()
    for t in range(a.shape[1]):
        s = round_array(fmt, round_array(fmt, a[:, t] * s) + b[:, t])
        assert np.array_equal(h[:, t].double().numpy(), s)
