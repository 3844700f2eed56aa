"""mlstm_kernels' forms in our calling form, against a loop of float64."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from plain_loops import OUTPUTS, mlstm
from torch import Tensor

from scancheck.adapters import mlstm_kernels as adapter
from scancheck.adapters.catalog import adapters
from scancheck.bounds.budget import budget_for
from scancheck.contract import Contract
from scancheck.kernel import Kernel
from scancheck.ops import OPS

KERNELS = {k.name: k for k in adapters() if k.name.startswith("mlstm_kernels.")}
EACH = [
    pytest.param(
        kernel,
        marks=pytest.mark.skipif(
            kernel.unavailable is not None, reason=str(kernel.unavailable)
        ),
        id=name,
    )
    for name, kernel in KERNELS.items()
]
TRITON = [one for one in EACH if ".triton" in str(one.id)]
LIMIT, LARGE, STEPS = (str(one.id) for one in TRITON)
B, T, H = 2, 70, 3
STATES = ("initial_state", "initial_normalizer", "initial_max")
NAMES = OUTPUTS["mlstm"]
# A convention that is not met is off by tenths; fp32 sums of 70 tokens give 1e-6, a
# quotient whose denominator nearly cancels some more.
MARGIN = {"fp32": 1e-4, "fp64": 1e-12, "fp16": 2e-2}
TORCH = {"fp32": torch.float32, "fp64": torch.float64, "fp16": torch.float16}


def shapes(kernel: Kernel, heads: int = H) -> dict[str, tuple[int, ...]]:
    """Of the inputs, in widths that a kernel takes; single steps in Triton are slow."""
    width = {"K": 4, "V": 5} | dict((kernel.contract or Contract()).widths)
    steps = 9 if kernel.name == STEPS else T
    row = (B, steps, heads)
    return {
        **dict.fromkeys(("q", "k"), (*row, width["K"])),
        "v": (*row, width["V"]),
        **dict.fromkeys(("i", "f"), row),
        "initial_state": (B, heads, width["K"], width["V"]),
        "initial_normalizer": (B, heads, width["K"]),
        "initial_max": (B, heads),
    }


def widest(kernel: Kernel) -> str:
    """The dtype with the most digits."""
    return "fp64" if "fp64" in kernel.dtypes else "fp32"


def case(kernel: Kernel, dtype: str = "", heads: int = H) -> dict[str, Tensor]:
    """Gates around zero, so that decay and input win the maximum in turn."""
    source = torch.Generator().manual_seed(3)
    tensors, dtype = {}, dtype or widest(kernel)
    for name, shape in shapes(kernel, heads).items():
        drawn = torch.randn(shape, generator=source, dtype=torch.float64)
        short = name in STATES and dtype == "fp16"
        tensors[name] = drawn.to(torch.float32 if short else TORCH[dtype])
    return tensors


def call(kernel: Kernel, given: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """The kernel's outputs, on the CPU."""
    there = {name: x.to(kernel.devices[0]) for name, x in given.items()}
    return tuple(x.cpu() for x in kernel.call(**there))


def off(found: Tensor, want: Tensor) -> float:
    """The error's norm relative to that of what is wanted."""
    return float((found.double() - want).detach().norm() / want.detach().norm())


def errors(kernel: Kernel, given: dict[str, Tensor], want: dict[str, Tensor]) -> set:
    """The outputs that are further from the loop's than rounding takes them."""
    dtype = next(name for name, x in TORCH.items() if x == given["q"].dtype)
    exact = mlstm({name: x.double() for name, x in want.items()})
    found = call(kernel, given)
    state = torch.float64 if dtype == "fp64" else torch.float32
    assert [x.dtype for x in found] == [TORCH[dtype], state, state, state]
    named = zip(NAMES, found, exact, strict=True)
    return {name for name, f, w in named if not off(f, w) < MARGIN[dtype]}


def gradients(function, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of all outputs under dense cotangents."""
    given = {name: x.detach().requires_grad_() for name, x in tensors.items()}
    outputs = function(given)
    source = torch.Generator().manual_seed(9)
    bars = [
        torch.randn(o.shape, generator=source, dtype=torch.float64).to(o.dtype)
        for o in outputs
    ]
    found = torch.autograd.grad(outputs, list(given.values()), bars)
    return dict(zip(given, found, strict=True))


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("kernel", EACH)
def test_conventions_are_the_ops(kernel: Kernel, dtype: str) -> None:
    """Outputs of all four kinds are those of a plain loop, also of a broken chunk."""
    if dtype in kernel.dtypes:
        assert errors(kernel, case(kernel, dtype), case(kernel, dtype)) == set()


@pytest.mark.parametrize("steps", [1, 17, 64, 65, 130])
@pytest.mark.parametrize("kernel", EACH)
def test_what_fills_a_chunk_changes_nothing(kernel: Kernel, steps: int) -> None:
    """Whole chunks are not filled up, and m far below zero is not raised."""
    if kernel.name == STEPS and steps > 17:
        pytest.skip("single steps have no chunks, and are slow in the interpreter")
    drawn = case(kernel)
    rows = -(-steps // drawn["q"].shape[1])
    given = {
        name: x if name in STATES else torch.cat([x] * rows, 1)[:, :steps]
        for name, x in drawn.items()
    }
    given["initial_max"] = given["initial_max"] - 40.0
    given["i"] = given["i"] - 40.0
    assert errors(kernel, given, given) == set()


@pytest.mark.parametrize("kernel", EACH)
def test_states_may_be_left_out(kernel: Kernel) -> None:
    """A part that is not given is zero: the package takes all of them or none."""
    tensors = case(kernel)
    for left_out in (*((name,) for name in STATES), STATES):
        given = {name: x for name, x in tensors.items() if name not in left_out}
        assert errors(kernel, given, given) == set()


@pytest.mark.parametrize("kernel", EACH)
def test_swapped_gates_are_seen(kernel: Kernel) -> None:
    """The case tells a convention from another: exchanged gates are far off."""
    tensors = case(kernel)
    other = tensors | {"i": tensors["f"], "f": tensors["i"]}
    assert errors(kernel, tensors, other) == {*NAMES}


@pytest.mark.parametrize("kernel", [one for one in EACH if one.id != STEPS])
def test_declared_gradients_are_those_of_the_formulas(kernel: Kernel) -> None:
    """The backward by hand, which none declares, leaves out the denominator."""
    tensors = case(kernel)
    interpreted = ".triton" in kernel.name and kernel.devices == ("cpu",)
    with adapter._eager(interpreted):
        found = gradients(lambda given: call(kernel, given), tensors)
    exact = {name: x.double() for name, x in tensors.items()}
    want = gradients(mlstm, exact)
    margin = {"fp64": 1e-9, "fp32": 1e-3}[widest(kernel)]
    wrong = {name for name in tensors if not off(found[name], want[name]) < margin}
    assert wrong == (set() if kernel.gradients else {*tensors} - {"v", "initial_state"})
    if not kernel.gradients:
        assert not found["initial_normalizer"].any()


def test_chunks_refuse_a_state_in_fp32_beside_fp16() -> None:
    """Why 16 bits are left out of torch's: a finding, which an update may end."""
    kernel = KERNELS["mlstm_kernels.chunkwise.native_autograd"]
    assert "fp16" not in kernel.dtypes
    if kernel.unavailable is None:
        with pytest.raises(RuntimeError, match="same dtype"):
            kernel.call(**case(kernel, "fp16"))


@pytest.mark.parametrize("kernel", TRITON)
def test_one_head_reads_other_rows(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finding: heads behind tokens, one of them, and several rows.

    What contiguous() returns then has its stride from row to row where the kernel does
    not look. Copied to new memory it is right.
    """
    given = case(kernel, heads=1)
    turned = given["q"].transpose(1, 2)
    assert turned.contiguous().stride(1) != turned[0].numel()
    assert ("h" in errors(kernel, given, given)) == (kernel.name != STEPS)
    heads_first = adapter._heads_first

    def copied(x: Tensor, missing: int, fill: float) -> Tensor:
        found = heads_first(x, missing, fill)
        return torch.empty(found.shape, dtype=x.dtype, device=x.device).copy_(found)

    monkeypatch.setattr(adapter, "_heads_first", copied)
    assert errors(kernel, given, given) == set()


@pytest.mark.parametrize("kernel", TRITON)
def test_small_log_forget_gates_are_lost(kernel: Kernel) -> None:
    """A finding: log(sigmoid(20)) is 0 in fp32, where logsigmoid has -2e-9."""
    given = case(kernel)
    given["f"] = torch.full_like(given["f"], 20.0)
    given["i"] = torch.full_like(given["i"], -40.0)
    given["initial_max"] = torch.zeros_like(given["initial_max"])
    (*_, want), (*_, found) = mlstm(given), call(kernel, given)
    assert bool((want < 0).all())
    assert (off(found, want) < 1e-3) == (kernel.name == LIMIT)
    assert bool(found.any()) == (kernel.name == LIMIT)


@pytest.mark.parametrize("kernel", TRITON)
def test_closed_gates_lose_the_state(kernel: Kernel) -> None:
    """A finding: log(sigmoid(-95)) is minus infinity, and what was kept is gone."""
    given = case(kernel)
    given["f"] = torch.full_like(given["f"], -95.0)
    given["i"] = torch.full_like(given["i"], -1000.0)
    given = {name: x if name in STATES else x[:, :1] for name, x in given.items()}
    kept = {"final_state", "final_normalizer", "final_max"}
    wrong = errors(kernel, given, given) & kept
    assert wrong == (set() if kernel.name == LIMIT else kept)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=lambda kernel: kernel.name)
def test_contracts_have_a_budget_on_the_op(kernel: Kernel) -> None:
    """What a contract says of the op has a bound there, gradients included."""
    tensors = {name: x.double().numpy() for name, x in case(kernel).items()}
    bars = {"h": np.ones(tensors["v"].shape), "final_max": tensors["initial_max"]}
    contract = kernel.contract or Contract()
    budget = budget_for(OPS["mlstm"], tensors, {}, contract, "fp32", bars)
    for allowed in (budget.outputs | budget.gradients).values():
        assert np.isfinite(allowed.error).all()


def test_the_licence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the note where the package is, in the reason where it is not."""
    assert len(KERNELS) == len(adapter.FORMS) == 6
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


@pytest.mark.parametrize(
    ("steps", "large"), [(0, 0), (1, 15), (16, 0), (33, 31), (65, 63), (129, 127)]
)
def test_whole_chunks(steps: int, large: int) -> None:
    """xl_chunk takes 16, 32 or 64 tokens, or chunks of 128."""
    assert adapter.missing_tokens(None, steps) == 0
    assert adapter.missing_tokens(128, steps) == large
    assert (steps + adapter.missing_tokens(64, steps)) % 64 == 0


def test_without_block_pointers_triton_forms_are_unavailable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The reason has Triton's version: it is told from its source, not imported."""
    core = tmp_path / "language" / "core.py"
    core.parent.mkdir()
    monkeypatch.setattr(adapter, "version", lambda name: "3.9.0")
    there: list[object] = [SimpleNamespace(submodule_search_locations=[str(tmp_path)])]
    monkeypatch.setattr(adapter, "find_spec", lambda name: there[0])
    core.write_text("def make_block_ptr(base):\n    return base\n")
    assert adapter.no_block_pointers() is None
    for source in ('def make_block_ptr(base):\n    """Gone."""\n    raise E\n', ""):
        core.write_text(source)
        assert adapter.no_block_pointers() == (
            "triton 3.9.0 has no block pointers (tl.make_block_ptr), which this form "
            "is written with; pip install 'triton<3.9'"
        )
    there[0] = None
    assert adapter.no_block_pointers() == (
        "triton is not installed; pip install 'triton<3.9'"
    )
