"""selective_scan models as differentiable torch functions."""

from typing import Any

import pytest
import torch
from torch.nn.functional import silu, softplus

from scancheck.contract import resolve
from scancheck.formats import FORMATS
from scancheck.kernel import Kernel
from scancheck.kernels.models.catalog import model, models

KERNELS = [kernel for kernel in models() if kernel.op == "selective_scan"]
COMPUTED_WIDELY = [
    pytest.param(kernel, dtype, id=f"{kernel.name}-{dtype}")
    for kernel in KERNELS
    for dtype in ("fp64", "fp32", "bf16")
    if dtype in kernel.dtypes
    and kernel.contract is not None
    and kernel.contract.state == "compute"
    and resolve(kernel.contract, dtype).compute in ("fp32", "fp64")
]
STATES = ("A", "D", "delta_bias", "initial_state")
OPTIONAL = ("D", "z", "delta_bias", "initial_state")
Tensors = dict[str, torch.Tensor]


def name_of(kernel: Kernel) -> str:
    """What a parametrised test calls a kernel."""
    return kernel.name


def draw(
    dtype: torch.dtype, keys: str, B: int = 2, D: int = 4, L: int = 13, N: int = 3
) -> Tensors:
    """Inputs that are all positive but A, so that hardly anything cancels."""
    generator = torch.Generator().manual_seed(L)

    def positive(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.25

    layout = {"time": (B, N, L), "grouped": (B, 2, N, L), "constant": (D, N)}[keys]
    tensors = {
        "u": positive(B, D, L),
        "delta": positive(B, D, L) - 1.0,
        "A": -positive(D, N),
        "B": positive(*layout),
        "C": positive(*layout),
        "D": positive(D),
        "z": positive(B, D, L),
        "delta_bias": positive(D) - 0.75,
        "initial_state": positive(B, D, N),
    }
    state = torch.float64 if dtype == torch.float64 else torch.float32
    constant = ("B", "C") if keys == "constant" else ()
    return {
        name: x.to(state if name in STATES + constant else dtype)
        for name, x in tensors.items()
    }


def spread(k: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """B or C over the channels that share them, [B, D, N, L]."""
    batch, channels, length = like.shape
    if k.ndim == 2:
        return k[None, :, :, None].expand(batch, channels, k.shape[1], length)
    if k.ndim == 3:
        k = k[:, None]
    return k.repeat_interleave(channels // k.shape[1], 1)


def reference(
    t: Tensors, delta_softplus: bool, apart: Tensors | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition as a float64 loop that autograd can follow.

    `apart` may hold zeros to be added to the step size in the decay, in the drive, and
    to u beside D, so that autograd tells these terms of one gradient apart.
    """
    extra = apart or {}
    x = t["delta"]
    if "delta_bias" in t:
        x = x + t["delta_bias"][None, :, None]
    d = softplus(x, threshold=1e9) if delta_softplus else x
    d_decay, d_drive = d + extra.get("decay", 0.0), d + extra.get("drive", 0.0)
    keys, reads = spread(t["B"], t["u"]), spread(t["C"], t["u"])
    batch, channels, length = t["u"].shape
    s = t.get("initial_state")
    if s is None:
        s = torch.zeros(batch, channels, t["A"].shape[1], dtype=torch.float64)
    y = []
    for i in range(length):
        w = torch.exp(d_decay[:, :, i, None] * t["A"])
        s = w * s + (d_drive * t["u"])[:, :, i, None] * keys[..., i]
        y.append((reads[..., i] * s).sum(-1))
    p = torch.stack(y, -1)
    if "D" in t:
        p = p + t["D"][:, None] * t["u"]
    return (p * silu(t["z"]) if "z" in t else p), s


def with_gradients(
    function: Any, tensors: Tensors, cotangents: tuple[torch.Tensor, ...]
) -> Tensors:
    """Outputs y and last_state and the gradient of each input, by its name."""
    leaves = {name: x.clone().requires_grad_() for name, x in tensors.items()}
    outputs = function(leaves)
    seeds = [c.to(out.dtype) for c, out in zip(cotangents, outputs, strict=True)]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), seeds)
    named = dict(zip(("y", "last_state"), outputs, strict=True))
    named |= {f"d{n}": x for n, x in zip(leaves, gradients, strict=True)}
    return {name: x.detach() for name, x in named.items()}


def terms_of_gradients(
    tensors: Tensors, delta_softplus: bool, cotangents: tuple[torch.Tensor, ...]
) -> Tensors:
    """Sums of the magnitudes of what is added up in each output and gradient.

    Everything is positive but the decay's part of the step size's gradient, so it
    suffices to take that part and the drive's apart.
    """
    zeros = torch.zeros_like(tensors["delta"])

    def split(leaves: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        apart = {name: leaves.pop(name) for name in ("decay", "drive")}
        return reference(leaves, delta_softplus, apart)

    terms = with_gradients(
        lambda leaves: split(dict(leaves)),
        {**tensors, "decay": zeros, "drive": zeros},
        cotangents,
    )
    step_terms = terms["ddecay"].abs() + terms["ddrive"].abs()
    if delta_softplus:
        x = tensors["delta"]
        if "delta_bias" in tensors:
            x = x + tensors["delta_bias"][None, :, None]
        step_terms = step_terms * torch.sigmoid(x)
    terms["ddelta"] = step_terms
    terms["ddelta_bias"] = step_terms.sum((0, 2))
    return terms


def assert_within_bound(
    kernel: Kernel, dtype: str, keys: str, absent: tuple[str, ...], softplus: bool
) -> None:
    """Outputs and gradients are off by no more roundings than the definition has.

    A decay errs by (1.01 + |d A| (1 + 2.01 + 1)) u: exp, its product, softplus and the
    sum before it (whose relative effect on softplus is at most 1.1 for |x| <= 1); made
    of sums of exponents by up to (2 C + 1) such sums more, and over the whole length
    twice that and a log-sum a step, of logarithms no larger than 20. A term has at most
    L decays and 3 L + 3 operations in each of two scans, 10 in the lowering and the
    epilogue and their pullbacks, and sums over N, the D / G channels of a group, B and
    L.
    """
    storage = FORMATS[dtype]
    tensors = draw(getattr(torch, storage.torch_name), keys)
    tensors = {name: x for name, x in tensors.items() if name not in absent}
    if not softplus:
        tensors["delta"] = tensors["delta"].abs()
        if "delta_bias" in tensors:
            tensors["delta_bias"] = tensors["delta_bias"].abs()
    batch, channels, length = tensors["u"].shape
    states = tensors["A"].shape[1]
    state_format = FORMATS["fp64" if dtype == "fp64" else "fp32"]
    state_dtype = getattr(torch, state_format.torch_name)
    generator = torch.Generator().manual_seed(1)
    cotangents = (
        torch.rand(batch, channels, length, generator=generator).to(tensors["u"].dtype),
        torch.rand(batch, channels, states, generator=generator).to(state_dtype),
    )
    wide = {name: x.double() for name, x in tensors.items()}
    truth = with_gradients(lambda t: reference(t, softplus), wide, cotangents)
    terms = terms_of_gradients(wide, softplus, cotangents)
    got = with_gradients(
        lambda t: kernel.call(**t, delta_softplus=softplus), tensors, cotangents
    )
    u = FORMATS["fp64" if dtype == "fp64" else "fp32"].unit_roundoff
    exponent = 1.5 * 1.25
    per_decay = 1.01 + exponent * 4.01
    log_form = 0.0
    if ".log_" in kernel.name:
        log_form = (2 * length + 1) * length * exponent
    if "log_full" in kernel.name:
        log_form = 2 * log_form + 2 * (length + 1) * (length * exponent + 20)
    roundings = length * per_decay + 2 * (3 * length + 3) + 10 + log_form
    roundings += states + channels + batch + length
    # In fp64 the reference itself errs as much.
    allowance = (2.2 if dtype == "fp64" else 1.1) * roundings * u
    for name, x in truth.items():
        state = got[name].dtype == state_dtype
        own = state_format if state else storage
        allowed = allowance * terms[name].abs()
        allowed += own.unit_roundoff * (x.abs() + allowed) + own.eta
        error = (got[name].double() - x).abs()
        assert bool((error <= allowed).all()), name
        if name.startswith("d"):
            assert got[name].dtype == tensors[name[1:]].dtype
            assert got[name].shape == tensors[name[1:]].shape


@pytest.mark.parametrize(("kernel", "dtype"), COMPUTED_WIDELY)
@pytest.mark.parametrize("keys", ["time", "grouped", "constant"])
def test_within_bound(kernel: Kernel, keys: str, dtype: str) -> None:
    """Every output and gradient differs from float64 autograd by rounding alone."""
    assert_within_bound(kernel, dtype, keys, (), True)


@pytest.mark.parametrize("absent", [(name,) for name in OPTIONAL] + [OPTIONAL])
@pytest.mark.parametrize("delta_softplus", [True, False])
def test_optional_inputs(absent: tuple[str, ...], delta_softplus: bool) -> None:
    """Without an optional input, or without softplus, the definition still holds."""
    kernel = model("selective_scan", "chunk", "plain", chunk=5)
    assert_within_bound(kernel, "fp32", "time", absent, delta_softplus)


@pytest.mark.parametrize("kernel", KERNELS, ids=name_of)
@pytest.mark.parametrize("sizes", [(2, 0), (2, 1), (0, 5), (0, 0)])
@pytest.mark.parametrize("keys", ["time", "grouped", "constant"])
def test_edge_sizes(kernel: Kernel, sizes: tuple[int, int], keys: str) -> None:
    """L = 0, L = 1 and B = 0 give outputs and gradients of the right shapes."""
    tensors = draw(torch.bfloat16, keys, B=sizes[0], L=sizes[1])
    cotangents = torch.ones(sizes[0], 4, sizes[1]), torch.full((sizes[0], 4, 3), 1.5)
    got = with_gradients(
        lambda t: kernel.call(**t, delta_softplus=True), tensors, cotangents
    )
    assert got["y"].shape == tensors["u"].shape
    assert got["y"].dtype == torch.bfloat16
    assert got["last_state"].dtype == torch.float32
    for name, x in tensors.items():
        assert got[f"d{name}"].shape == x.shape
        assert got[f"d{name}"].dtype == x.dtype
    if sizes[1] == 0:
        assert torch.equal(got["last_state"], tensors["initial_state"])
        assert torch.equal(got["dinitial_state"], cotangents[1])


def test_narrow_computation_takes_wide_parameters_exactly() -> None:
    """In bf16 arithmetic the fp32 bias is added as it is, not rounded before."""
    kernel = model("selective_scan", "sequential", "plain", compute="storage")
    one = torch.ones(1, 1, 1, dtype=torch.bfloat16)
    y, _ = kernel.call(
        u=one,
        delta=one,
        A=torch.zeros(1, 1),
        B=one,
        C=one,
        # Rounded to bf16 first, the bias would be 2**-8 and the sum a tie to even.
        delta_bias=torch.tensor([2.0**-8 + 2.0**-20]),
    )
    assert float(y) == 1.0 + 2.0**-7
