"""mamba_ssm's kernels in our calling form: the reference, and why others cannot run."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from plain_loops import softplused
from torch import Tensor
from torch.nn.functional import softplus

from scancheck.adapters import mamba_ssm
from scancheck.adapters.catalog import adapters
from scancheck.errors import KernelUnavailable

# The step has tests of its own.
KERNELS = {
    k.name: k
    for k in adapters()
    if k.name.startswith("mamba_ssm.") and "state_update" not in k.name
}
REFERENCE = KERNELS["mamba_ssm.selective_scan_ref"]
COMBINED = KERNELS["mamba_ssm.mamba_chunk_scan_combined"]
FAST = KERNELS["mamba_ssm.selective_scan_fn"]
needs_reference = pytest.mark.skipif(
    REFERENCE.unavailable is not None, reason=str(REFERENCE.unavailable)
)
B, D, N, L, G, H, P = 2, 4, 3, 70, 2, 4, 5
KEYS = {"time": (B, N, L), "grouped": (B, G, N, L), "constant": (D, N)}
MARGIN = 1e-4  # a wrong convention is off by tenths, fp32 by 1e-6
INSTALL = "pip install 'scancheck[mamba-ssm]'"


def drawn(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """fp32 tensors of these shapes; A is negative."""
    source = torch.Generator().manual_seed(7)
    found = {n: torch.randn(shape, generator=source) for n, shape in shapes.items()}
    return found | {"A": -0.2 * found["A"].abs()}


def off(found: Tensor, want: Tensor) -> float:
    """The error's norm relative to that of what is wanted."""
    want = want.detach().cpu()
    return float((found.detach().cpu().double() - want).norm() / want.norm())


def selective_case(keys: str) -> dict[str, Tensor]:
    """Tensors of selective_scan with such keys."""
    lane, channel = (B, D, L), (D,)
    shapes = {"u": lane, "delta": lane, "z": lane, "D": channel, "delta_bias": channel}
    return drawn(shapes | {"A": (D, N), "B": KEYS[keys], "C": KEYS[keys]})


@needs_reference
@pytest.mark.parametrize("keys", KEYS)
def test_the_reference_is_the_loop(keys: str) -> None:
    """Outputs and gradients, in each layout of B and C."""
    tensors = {n: x.requires_grad_() for n, x in selective_case(keys).items()}
    exact = {n: x.detach().double().requires_grad_() for n, x in tensors.items()}
    found = REFERENCE.call(**tensors, delta_softplus=True)
    want = softplused("selective_scan", exact)
    assert all(off(f, w) < MARGIN for f, w in zip(found, want, strict=True))
    slopes = torch.autograd.grad([x.sum() for x in found], list(tensors.values()))
    wanted = torch.autograd.grad([x.sum() for x in want], list(exact.values()))
    errors = dict(zip(tensors, map(off, slopes, wanted), strict=True))
    assert max(errors.values()) < MARGIN, errors
    swapped = exact | {"B": exact["C"], "C": exact["B"]}
    assert off(found[1], softplused("selective_scan", swapped)[1]) > 0.1


@pytest.mark.gpu
@pytest.mark.skipif(FAST.unavailable is not None, reason=str(FAST.unavailable))
@pytest.mark.parametrize("keys", KEYS)
def test_the_extension_is_the_loop(keys: str) -> None:
    """On a device: outputs in each layout of B and C."""
    tensors = selective_case(keys)
    given = {name: x.cuda() for name, x in tensors.items()}
    found = FAST.call(**given, delta_softplus=True)
    want = softplused(
        "selective_scan", {name: x.double() for name, x in tensors.items()}
    )
    assert all(off(f, w) < MARGIN for f, w in zip(found, want, strict=True))


@pytest.mark.skipif(COMBINED.unavailable is not None, reason=str(COMBINED.unavailable))
def test_chunks_are_the_loop() -> None:
    """Groups, states P x N, softplus, D and the gate; gradients of all; TF32 allowed.

    On a device where there is one, else interpreted.
    """
    x = drawn(
        {
            **dict.fromkeys(("x", "z"), (B, L, H, P)),
            **dict.fromkeys(("B", "C"), (B, L, G, N)),
            **dict.fromkeys(("A", "D", "dt_bias"), (H,)),
            "dt": (B, L, H),
            "initial_states": (B, H, P, N),
        }
    )
    given = {n: v.to(COMBINED.devices[0]).requires_grad_() for n, v in x.items()}
    found = COMBINED.call(**given, dt_softplus=True)
    x = {name: values.double().requires_grad_() for name, values in x.items()}
    want = softplused("ssd", x)
    assert all(off(f, w) < 1e-2 for f, w in zip(found, want, strict=True))
    slopes = torch.autograd.grad([y.sum() for y in found], list(given.values()))
    wanted = torch.autograd.grad([y.sum() for y in want], list(x.values()))
    errors = dict(zip(x, map(off, slopes, wanted), strict=True))
    assert max(errors.values()) < 1e-2, errors


@pytest.mark.skipif(
    COMBINED.unavailable is not None or COMBINED.devices == ("cuda",),
    reason=str(COMBINED.unavailable or "the interpreter's exponentials are exact"),
)
@pytest.mark.parametrize(("dt", "wrong"), [(0.5, False), (-6.0, False), (-18.0, True)])
def test_softplus_loses_its_tail(dt: float, wrong: bool) -> None:
    """log(exp(dt) + 1) is zero at -18, where softplus is exp(-18): a finding."""
    one = torch.ones(1, 1, 1, 1)
    given = {"x": one, "dt": torch.full((1, 1, 1), dt), "A": torch.zeros(1)}
    _, state = COMBINED.call(**given, B=one, C=one, dt_softplus=True)
    want = float(softplus(torch.tensor(dt, dtype=torch.float64)))
    assert (abs(state.item() / want - 1.0) > 0.1) == wrong


@pytest.mark.skipif(COMBINED.unavailable is not None, reason=str(COMBINED.unavailable))
def test_growth_is_cut_off() -> None:
    """Why the contract's domain has A at most zero: a token keeps what came before."""
    ones = torch.ones(1, 3, 1, 1, device=COMBINED.devices[0])
    given = {"x": ones, "dt": ones[..., 0], "A": ones[0, :1, 0, 0]}
    y, _ = COMBINED.call(**given, B=ones, C=ones)
    assert [round(float(x)) for x in y.flatten()] == [1, 2, 3]  # not 1, 1 + e, ...
    assert COMBINED.contract is not None
    assert ("A", float("-inf"), 0.0) in COMBINED.contract.domain


def test_chunks_refuse_a_call_without_tokens() -> None:
    """The package would write a state where there is none, interpreted as compiled."""
    with pytest.raises(ValueError, match="expected a token"):
        COMBINED.call(x=torch.ones(1, 0, 2, 3))


def test_a_missing_package_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the kernels stay listed, with how to install it."""
    monkeypatch.setattr(mamba_ssm, "find_spec", lambda name: None)
    for kernel in mamba_ssm.mamba_ssm_kernels():
        assert kernel.unavailable == f"mamba_ssm is not installed; {INSTALL}"


def test_where_the_reason_is_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An older version, no extension, no Triton, no device: each is told."""
    scans = tmp_path / "ops" / "selective_scan_interface.py"
    scans.parent.mkdir()
    scans.write_text("def selective_scan_fn(u): ...\n")
    there = {"mamba_ssm": SimpleNamespace(submodule_search_locations=[str(tmp_path)])}
    monkeypatch.setattr(mamba_ssm, "find_spec", there.get)
    monkeypatch.setattr(mamba_ssm, "version", lambda name: "1.2")
    monkeypatch.setattr(mamba_ssm, "device_unavailable", lambda: "no driver")

    def told() -> str | None:
        return mamba_ssm.mamba_ssm_kernels()[0].unavailable

    mamba_ssm._functions.cache_clear()
    fast, reference, combined = mamba_ssm.mamba_ssm_kernels()
    assert "without its extension selective_scan_cuda" in str(fast.unavailable)
    assert (
        reference.unavailable == f"mamba_ssm 1.2 has no selective_scan_ref; {INSTALL}"
    )
    assert "has no mamba_chunk_scan_combined" in str(combined.unavailable)
    there["selective_scan_cuda"] = SimpleNamespace()
    assert told() == f"triton is not installed; {INSTALL}"
    there |= {"triton": SimpleNamespace(), "einops": SimpleNamespace()}
    assert told() == "it runs on a CUDA device alone: no driver"
    monkeypatch.setattr(mamba_ssm, "device_unavailable", lambda: None)
    assert told() is None
    mamba_ssm._functions.cache_clear()


def test_its_own_imports_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A module is had without the package's __init__, which others import later."""
    (tmp_path / "__init__.py").write_text("raise ImportError('all models')\n")
    (tmp_path / "part_of_it.py").write_text("import not_there\n")
    (tmp_path / "other_part.py").write_text("VALUE = 3\n")
    for name in list(sys.modules):
        if name.partition(".")[0] == "mamba_ssm":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(mamba_ssm, "_folder", lambda: tmp_path)
    assert mamba_ssm.imported("other_part").VALUE == 3
    with pytest.raises(KernelUnavailable, match=r"cannot be imported.*not_there"):
        mamba_ssm.imported("part_of_it")
    assert "mamba_ssm" not in sys.modules
    del sys.modules["mamba_ssm.other_part"]


def test_devices_are_told() -> None:
    """One runs on CUDA devices alone; one is interpreted where there is none."""
    assert {k.name: k.devices for k in KERNELS.values()} == {
        "mamba_ssm.selective_scan_fn": ("cuda",),
        "mamba_ssm.selective_scan_ref": ("cpu", "cuda"),
        "mamba_ssm.mamba_chunk_scan_combined": COMBINED.devices,
    }
    interpreted = COMBINED.devices == ("cpu",)
    assert ("bf16" in COMBINED.dtypes) == (not interpreted)
    assert (COMBINED.longest is not None) == interpreted


def test_chunks_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device each part has one configuration before the function is called."""
    order: list[str] = []

    def combined(**given: object) -> tuple[Tensor, Tensor]:
        order.append(f"{sorted(given)}")
        return torch.zeros(1), torch.zeros(1, dtype=torch.bfloat16)

    module = SimpleNamespace(mamba_chunk_scan_combined=combined)
    monkeypatch.setattr(mamba_ssm, "triton_module", lambda name, interpreted: module)
    monkeypatch.setattr(mamba_ssm, "take_first", lambda: order.append("first"))
    _, state = COMBINED.call(x=torch.zeros(1, 1, device="meta"))
    assert order == ["first", "['chunk_size', 'dt_limit', 'return_final_states', 'x']"]
    assert state.dtype == torch.float32
    _ = COMBINED.call(x=torch.zeros(1, 1))
    assert order.count("first") == 1
