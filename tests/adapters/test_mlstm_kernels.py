"""mlstm_kernels' torch forms in our calling form, against a loop of float64."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from scancheck.adapters import mlstm_kernels as adapter
from scancheck.adapters.catalog import adapters
from scancheck.bounds.budget import budget_for
from scancheck.contract import Contract
from scancheck.kernel import Kernel
from scancheck.ops import OPS

KERNELS = {k.name: k for k in adapters() if k.name.startswith("mlstm_kernels.")}
HERE = [kernel for kernel in KERNELS.values() if kernel.unavailable is None]
B, T, H, K, V = 2, 70, 3, 4, 5
SHAPES = {
    **dict.fromkeys(("q", "k"), (B, T, H, K)),
    "v": (B, T, H, V),
    **dict.fromkeys(("i", "f"), (B, T, H)),
    "initial_state": (B, H, K, V),
    "initial_normalizer": (B, H, K),
    "initial_max": (B, H),
}
STATES = ("initial_state", "initial_normalizer", "initial_max")
OUTPUTS = ("h", "final_state", "final_normalizer", "final_max")
# A convention that is not met is off by tenths; fp32 sums of 70 tokens give 1e-6, a
# quotient whose denominator nearly cancels some more.
MARGIN = {"fp32": 1e-4, "fp64": 1e-12, "fp16": 2e-2}
TORCH = {"fp32": torch.float32, "fp64": torch.float64, "fp16": torch.float16}

needs_package = pytest.mark.skipif(not HERE, reason="mlstm_kernels is missing")


def case(dtype: str = "fp32") -> dict[str, Tensor]:
    """Gates around zero, so that decay and input win the maximum in turn."""
    source = torch.Generator().manual_seed(3)
    tensors = {}
    for name, shape in SHAPES.items():
        drawn = torch.randn(shape, generator=source, dtype=torch.float64)
        short = name in STATES and dtype == "fp16"
        tensors[name] = drawn.to(torch.float32 if short else TORCH[dtype])
    return tensors


def loop(given: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Beck et al. 2024 (xLSTM), equations 19 to 27, with the package's floor."""
    memory, normalizer = given["initial_state"], given["initial_normalizer"]
    m = given["initial_max"]
    outputs = []
    for t in range(given["q"].shape[1]):
        q, k, v, i, f = (given[name][:, t] for name in "qkvif")
        forget = torch.nn.functional.logsigmoid(f)
        new = torch.maximum(forget + m, i)
        decay, gain = (forget + m - new).exp(), (i - new).exp()
        outer = k[..., :, None] * v[..., None, :]
        memory = decay[..., None, None] * memory + gain[..., None, None] * outer
        normalizer = decay[..., None] * normalizer + gain[..., None] * k
        m, q = new, q * K**-0.5
        read = (normalizer * q).sum(-1)
        floor = torch.maximum(read.abs(), (-m).exp()) + 1e-6
        outputs.append(torch.einsum("bhkv,bhk->bhv", memory, q) / floor[..., None])
    return torch.stack(outputs, 1), memory, normalizer, m


def off(found: Tensor, want: Tensor) -> float:
    """The error's norm relative to that of what is wanted."""
    return float((found.double() - want).detach().norm() / want.detach().norm())


def errors(kernel: Kernel, given: dict[str, Tensor], want: dict[str, Tensor]) -> set:
    """The outputs that are further from the loop's than rounding takes them."""
    dtype = next(name for name, x in TORCH.items() if x == given["q"].dtype)
    exact = loop({name: x.double() for name, x in want.items()})
    found = kernel.call(**given)
    state = torch.float64 if dtype == "fp64" else torch.float32
    assert [x.dtype for x in found] == [TORCH[dtype], state, state, state]
    named = zip(OUTPUTS, found, exact, strict=True)
    return {name for name, f, w in named if not off(f, w) < MARGIN[dtype]}


def gradients(call, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of all outputs under dense cotangents."""
    given = {name: x.detach().requires_grad_() for name, x in tensors.items()}
    outputs = call(given)
    source = torch.Generator().manual_seed(9)
    bars = [
        torch.randn(o.shape, generator=source, dtype=torch.float64).to(o.dtype)
        for o in outputs
    ]
    found = torch.autograd.grad(outputs, list(given.values()), bars)
    return dict(zip(given, found, strict=True))


@needs_package
@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("kernel", HERE, ids=lambda kernel: kernel.name)
def test_conventions_are_the_ops(kernel: Kernel, dtype: str) -> None:
    """Outputs of all four kinds are those of a plain loop, also of a broken chunk."""
    if dtype in kernel.dtypes:
        assert errors(kernel, case(dtype), case(dtype)) == set()


@needs_package
@pytest.mark.parametrize("steps", [1, 64, 65])
@pytest.mark.parametrize("kernel", HERE, ids=lambda kernel: kernel.name)
def test_what_fills_a_chunk_changes_nothing(kernel: Kernel, steps: int) -> None:
    """Whole chunks are not filled up, and m far below zero is not raised."""
    given = {n: x if n in STATES else x[:, :steps] for n, x in case("fp64").items()}
    given["initial_max"] = given["initial_max"] - 40.0
    given["i"] = given["i"] - 40.0
    assert errors(kernel, given, given) == set()


@needs_package
@pytest.mark.parametrize("kernel", HERE, ids=lambda kernel: kernel.name)
def test_states_may_be_left_out(kernel: Kernel) -> None:
    """A part that is not given is zero: the package takes all of them or none."""
    tensors = case("fp64")
    for left_out in (*((name,) for name in STATES), STATES):
        zero = {name: torch.zeros_like(tensors[name]) for name in left_out}
        given = {name: x for name, x in tensors.items() if name not in left_out}
        assert errors(kernel, given, tensors | zero) == set()


@needs_package
@pytest.mark.parametrize("kernel", HERE, ids=lambda kernel: kernel.name)
def test_swapped_gates_are_seen(kernel: Kernel) -> None:
    """The case tells a convention from another: exchanged gates are far off."""
    tensors = case("fp64")
    other = tensors | {"i": tensors["f"], "f": tensors["i"]}
    assert errors(kernel, tensors, other) == {*OUTPUTS}


@needs_package
@pytest.mark.parametrize("kernel", HERE, ids=lambda kernel: kernel.name)
def test_declared_gradients_are_those_of_the_formulas(kernel: Kernel) -> None:
    """Those of native_custbw, which declares none, leave out the denominator."""
    tensors = case("fp64")
    found = gradients(lambda given: kernel.call(**given), tensors)
    want = gradients(loop, tensors)
    wrong = {name for name in tensors if not off(found[name], want[name]) < 1e-9}
    assert wrong == (set() if kernel.gradients else {*tensors} - {"v", "initial_state"})
    if not kernel.gradients:
        assert not found["initial_normalizer"].any()


@needs_package
def test_chunks_refuse_a_state_in_fp32_beside_fp16() -> None:
    """Why 16 bits are left out: a finding, which an update may end."""
    kernel = KERNELS["mlstm_kernels.chunkwise.native_autograd"]
    assert "fp16" not in kernel.dtypes
    with pytest.raises(RuntimeError, match="same dtype"):
        kernel.call(**case("fp16"))


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=lambda kernel: kernel.name)
def test_contracts_have_a_budget_on_the_op(kernel: Kernel) -> None:
    """What a contract says of the op has a bound there, gradients included."""
    tensors = {name: x.numpy() for name, x in case("fp64").items()}
    bars = {"h": np.ones(SHAPES["v"]), "final_max": tensors["initial_max"]}
    contract = kernel.contract or Contract()
    budget = budget_for(OPS["mlstm"], tensors, {}, contract, "fp32", bars)
    for allowed in (budget.outputs | budget.gradients).values():
        assert np.isfinite(allowed.error).all()


def test_the_licence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the note where the package is, in the reason where it is not."""
    assert len(KERNELS) == len(adapter.FORMS) == 3
    for kernel in KERNELS.values():
        assert "NXAI Community License" in str(kernel.note)
    monkeypatch.setattr(adapter, "find_spec", lambda name: None)
    for kernel in adapter.mlstm_kernels():
        assert str(kernel.unavailable).startswith(
            "mlstm_kernels is not installed; pip install 'scancheck[mlstm-kernels]'; "
            "NXAI Community License"
        )
    project = Path(adapter.__file__).parents[2] / "pyproject.toml"
    lines = project.read_text(encoding="utf-8").splitlines()
    extra = next(n for n, line in enumerate(lines) if line.startswith("mlstm-kernels"))
    assert "NXAI Community License" in lines[extra - 1]


def test_another_version_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each function is looked for in the installed source, which is not imported."""
    source = tmp_path / "torch" / "recurrent" / "native_sequence.py"
    source.parent.mkdir(parents=True)
    source.write_text(
        "raise ImportError\ndef mlstm_recurrent_sequence__native_fw(): ...\n"
    )
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(adapter, "find_spec", lambda name: spec)
    monkeypatch.setattr(adapter, "version", lambda name: "9.9")
    told = {kernel.name: kernel.unavailable for kernel in adapter.mlstm_kernels()}
    assert told["mlstm_kernels.recurrent.native"] is None
    assert told["mlstm_kernels.chunkwise.native_custbw"] == (
        "mlstm_kernels 9.9 has no mlstm_chunkwise__native_custbw; "
        "pip install 'scancheck[mlstm-kernels]'"
    )
