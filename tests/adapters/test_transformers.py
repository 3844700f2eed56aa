"""transformers' functions in our calling form, against loops of float64."""

import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from plain_loops import SOFTPLUS, softplused
from torch import Tensor
from torch.nn.functional import normalize

from scancheck.adapters import transformers
from scancheck.adapters.catalog import adapters
from scancheck.adapters.transformers import ROWS
from scancheck.errors import KernelUnavailable
from scancheck.kernel import Kernel

START = "transformers."
KERNELS = {k.name: k for k in adapters() if k.name.startswith(START)}
HERE = [kernel for kernel in KERNELS.values() if kernel.unavailable is None]
needs_transformers = pytest.mark.skipif(not HERE, reason="transformers is missing")

B, T, H, HV, K, V, D = 2, 70, 2, 4, 5, 7, 3  # sizes that no two axes share
SHAPES = {
    "delta": {
        "q": (B, T, H, K),
        "k": (B, T, H, K),
        "v": (B, T, HV, V),
        "beta": (B, T, HV),
        "initial_state": (B, HV, K, V),
    },
    "ssd": {
        "x": (B, T, HV, V),
        "dt": (B, T, HV),
        "A": (HV,),
        "B": (B, T, H, K),
        "C": (B, T, H, K),
        "D": (HV,),
        "dt_bias": (HV,),
        "initial_states": (B, HV, V, K),
    },
    "selective_scan": {
        "u": (B, D, T),
        "delta": (B, D, T),
        "A": (D, K),
        "B": (B, K, T),
        "C": (B, K, T),
        "D": (D,),
        "z": (B, D, T),
        "delta_bias": (D,),
    },
}
# A convention that is not met is off by tenths; fp32 sums of 70 tokens are off by 1e-6.
MARGIN = 1e-4


def case(kernel: Kernel) -> dict[str, Tensor]:
    """fp32 tensors: slow decays, keys of norm 1, betas in (0, 1), shared key heads."""
    op, contract = kernel.op, kernel.contract
    source = torch.Generator().manual_seed(7)
    shapes = SHAPES.get(op, SHAPES["delta"])
    if contract is not None and contract.heads == "one_to_one":
        shapes = shapes | {name: (B, T, HV, K) for name in ("q", "k")}
    if op not in SHAPES:
        shapes = shapes | {"g": (B, T, HV) if op != "kda" else (B, T, HV, K)}
    found = {}
    for name, shape in shapes.items():
        drawn = torch.randn(shape, generator=source, dtype=torch.float64)
        if name in ("g", "A"):
            drawn = -0.2 * drawn.abs()
        elif name == "k":
            drawn = normalize(drawn, dim=-1)
        elif name == "beta":
            drawn = drawn.sigmoid()
        found[name] = drawn.float()
    return found


def called(kernel: Kernel, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Output and final state of the kernel, with softplus where the op has it."""
    switch = {SOFTPLUS[kernel.op]: True} if kernel.op in SOFTPLUS else {}
    output, state = kernel.call(**tensors, **switch)
    return output, state


def off(found: Tensor, want: Tensor) -> float:
    """The error's norm relative to that of what is wanted."""
    want = want.detach()
    return float((found.detach().double() - want).norm() / want.norm())


@needs_transformers
@pytest.mark.parametrize("kernel", HERE, ids=lambda kernel: kernel.name)
def test_outputs_and_gradients_are_those_of_a_loop(kernel: Kernel) -> None:
    """Groups, layouts, scale, gates and states as the op has them."""
    tensors = {n: x.requires_grad_() for n, x in case(kernel).items()}
    exact = {n: x.detach().double().requires_grad_() for n, x in tensors.items()}
    found = called(kernel, tensors)
    want = softplused(kernel.op, exact)
    assert all(off(f, w) < MARGIN for f, w in zip(found, want, strict=True))
    source = torch.Generator().manual_seed(8)
    bars = [torch.randn(w.shape, generator=source, dtype=torch.float64) for w in want]
    slopes = torch.autograd.grad(
        found, list(tensors.values()), [bar.float() for bar in bars]
    )
    wanted = torch.autograd.grad(want, list(exact.values()), bars)
    errors = dict(zip(tensors, map(off, slopes, wanted), strict=True))
    assert max(errors.values()) < MARGIN, errors


@needs_transformers
@pytest.mark.parametrize("kernel", HERE, ids=lambda kernel: kernel.name)
def test_the_case_tells_conventions_apart(kernel: Kernel) -> None:
    """A loop with other groups, or keys for queries, is far from the function."""
    tensors = case(kernel)
    one, other = ("B", "C") if kernel.op in SOFTPLUS else ("q", "k")
    found = called(kernel, tensors)
    exact = {name: x.double() for name, x in tensors.items()}
    swapped = exact | {one: exact[other], other: exact[one]}
    assert off(found[0], softplused(kernel.op, swapped)[0]) > 0.1
    if kernel.op != "selective_scan":
        flipped = exact | {name: exact[name].flip(2) for name in (one, other)}
        assert off(found[0], softplused(kernel.op, flipped)[0]) > 0.1


@needs_transformers
@pytest.mark.parametrize("kernel", HERE, ids=lambda kernel: kernel.name)
def test_dtypes_are_the_ops(kernel: Kernel) -> None:
    """The output has the inputs' dtype, the state is fp32, in each declared dtype."""
    states = ("initial_state", "initial_states", "A", "D", "dt_bias", "delta_bias")
    for dtype in (torch.float16, torch.bfloat16):
        given = {
            name: x if name in states else x.to(dtype)
            for name, x in case(kernel).items()
        }
        output, state = called(kernel, given)
        assert (output.dtype, state.dtype) == (dtype, torch.float32)
        exact = {name: x.double() for name, x in given.items()}
        want, _ = softplused(kernel.op, exact)
        assert off(output, want) < 0.05


@needs_transformers
@pytest.mark.parametrize("kernel", HERE, ids=lambda kernel: kernel.name)
def test_initial_state_may_be_left_out(kernel: Kernel) -> None:
    """Without one a function starts from zero."""
    tensors = case(kernel)
    exact = {name: x.double() for name, x in tensors.items()}
    for name in ("initial_state", "initial_states"):
        if tensors.pop(name, None) is not None:
            exact[name] = torch.zeros_like(exact[name])
    want = softplused(kernel.op, exact)
    found = called(kernel, tensors)
    assert all(off(f, w) < MARGIN for f, w in zip(found, want, strict=True))


@needs_transformers
def test_a_state_without_tokens_has_memory_of_its_own() -> None:
    """The recurrent form hands the initial state back, which the adapter copies."""
    kernel = KERNELS["transformers.torch_recurrent_gated_delta_rule"]
    tensors = case(kernel)
    for name in ("q", "k", "v", "g", "beta"):
        tensors[name] = tensors[name][:, :0]
    output, state = kernel.call(**tensors)
    assert output.shape == (B, 0, HV, V)
    assert torch.equal(state, tensors["initial_state"])
    assert state.data_ptr() != tensors["initial_state"].data_ptr()


@needs_transformers
def test_a_negative_step_is_not_clamped() -> None:
    """mamba2_chunk_scan by itself takes a negative dt for zero; the op does not."""
    kernel = KERNELS["transformers.mamba2_chunk_scan"]
    tensors = case(kernel)
    del tensors["dt_bias"], tensors["D"]
    assert bool((tensors["dt"] < 0).any())
    exact = {name: x.double() for name, x in tensors.items()}
    d, state = exact["dt"], exact["initial_states"]
    keys = exact["B"].repeat_interleave(HV // H, 2)
    for t in range(T):
        write = d[:, t, :, None] * exact["x"][:, t]
        decay = (d[:, t] * exact["A"]).exp()[..., None, None]
        state = decay * state + write[..., None] * keys[:, t, :, None]
    assert off(kernel.call(**tensors)[1], state) < MARGIN


@needs_transformers
def test_others_kernels_do_not_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is imported without fla, and left for others to import with it."""
    name = "transformers.models.kimi_linear.modeling_kimi_linear"
    monkeypatch.delitem(sys.modules, name, raising=False)
    there = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "fla", there)
    transformers._function.cache_clear()
    function = transformers._function("kimi_linear", "chunk_kimi_delta_attention")
    assert function.__module__ == name
    assert not hasattr(function, "__wrapped__")
    assert name not in sys.modules
    assert sys.modules["fla"] is there


def test_every_row_is_listed() -> None:
    """Whether or not transformers is installed."""
    assert set(KERNELS) == {f"{START}{row.function}" for row in ROWS}


def test_a_missing_package_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without transformers its functions stay listed, with how to install it."""
    monkeypatch.setattr(transformers, "find_spec", lambda name: None)
    for row in ROWS:
        assert transformers.unavailable(row) == (
            "transformers is not installed; pip install 'scancheck[transformers]'"
        )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "has no torch_chunk_gated_delta_rule"),
        (
            "def torch_chunk_gated_delta_rule(query, key, value, g, beta): ...\n",
            "does not take chunk_size, initial_state, output_final_state",
        ),
    ],
)
def test_another_version_is_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, reason: str
) -> None:
    """A function that is not there, or takes other arguments, cannot run here."""
    folder = tmp_path / "models" / "qwen3_next"
    folder.mkdir(parents=True)
    (folder / "modeling_qwen3_next.py").write_text(source)
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(transformers, "find_spec", lambda name: spec)
    monkeypatch.setattr(transformers, "version", lambda name: "4.99")
    monkeypatch.setattr(transformers, "requires", lambda name: None)
    transformers._lacking.cache_clear()
    transformers._functions.cache_clear()
    told = transformers.unavailable(ROWS[0])
    transformers._functions.cache_clear()
    assert told is not None and "transformers 4.99" in told and reason in told


def test_what_it_needs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers without tokenizers, say, cannot run; torch is there."""
    needed = ["torch>=2.4", "nothing-of-that-name; extra == 'x'", "not-there<1,>=0.2"]
    monkeypatch.setattr(transformers, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setattr(transformers, "requires", lambda name: needed)
    transformers._lacking.cache_clear()
    told = transformers.unavailable(ROWS[0])
    transformers._lacking.cache_clear()
    assert told == (
        "transformers needs not-there, which is not installed; "
        "pip install 'scancheck[transformers]'"
    )


def test_an_import_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its metadata does not say: a reason, not a traceback."""

    def refuse(name: str) -> None:
        raise ModuleNotFoundError("No module named 'tokenizers'")

    monkeypatch.setattr(transformers, "import_module", refuse)
    monkeypatch.setattr(transformers, "version", lambda name: "5.24.0")
    transformers._function.cache_clear()
    with pytest.raises(KernelUnavailable, match=r"5\.24\.0.*'tokenizers'"):
        transformers._function("mamba", "mamba_selective_scan")


@pytest.mark.parametrize(
    ("body", "heads"),
    [("key.repeat_interleave(2, dim=2)", "shared"), ("key", "one_to_one")],
)
def test_versions_that_do_not_repeat_keys_are_known(
    body: str, heads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers 5.17 left repeating to the model, 5.24 has it in the function."""
    row = next(r for r in transformers.ROWS if r.op == "gated_delta_rule")
    (function,) = ast.parse(f"def f(key):\n    return {body}").body
    monkeypatch.setattr(
        transformers, "_functions", lambda model: {row.function: function}
    )
    assert transformers.contract_of(row).heads == heads
