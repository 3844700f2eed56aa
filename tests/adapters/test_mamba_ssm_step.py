"""mamba_ssm's one-token step in our calling form, against loops of float64."""

from types import SimpleNamespace

import pytest
import torch
from plain_loops import SOFTPLUS, softplused
from torch import Tensor

from scancheck.adapters import mamba_ssm, mamba_ssm_step
from scancheck.adapters.catalog import adapters
from scancheck.kernel import Kernel
from scancheck.ops import OPS
from scancheck.runner import accepted_parameters

KERNELS = {k.op: k for k in adapters() if "selective_state_update" in k.name}
HERE = [k for k in KERNELS.values() if k.unavailable is None and k.devices == ("cpu",)]
NAMED = {"ids": lambda kernel: kernel.name}
B, T, D, N, H, G, P = 2, 5, 4, 3, 4, 2, 5
SHAPES = {
    "selective_scan": {
        **dict.fromkeys(("u", "delta", "z"), (B, D, T)),
        "A": (D, N),
        **dict.fromkeys(("B", "C"), (B, N, T)),
        **dict.fromkeys(("D", "delta_bias"), (D,)),
        "initial_state": (B, D, N),
    },
    "ssd": {
        **dict.fromkeys(("x", "z"), (B, T, H, P)),
        "dt": (B, T, H),
        **dict.fromkeys(("A", "D", "dt_bias"), (H,)),
        **dict.fromkeys(("B", "C"), (B, T, G, N)),
        "initial_states": (B, H, P, N),
    },
}
STATE_KIND = ("A", "D", "delta_bias", "dt_bias", "initial_state", "initial_states")
MARGIN = {torch.float32: 1e-5, torch.float16: 5e-3}  # a wrong convention: tenths

needs_package = pytest.mark.skipif(
    not HERE, reason="mamba_ssm is missing, or here is a CUDA device"
)


def case(op: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Tensors of the op; A is negative."""
    source = torch.Generator().manual_seed(7)
    found = {}
    for name, shape in SHAPES[op].items():
        drawn = torch.randn(shape, generator=source)
        found[name] = drawn if name in STATE_KIND else drawn.to(dtype)
    return found | {"A": -0.2 * found["A"].abs()}


def errors(
    kernel: Kernel, given: dict[str, Tensor], want: dict[str, Tensor]
) -> list[float]:
    """Norms of the errors relative to those of output and state."""
    found = kernel.call(**given, **{SOFTPLUS[kernel.op]: True})
    exact = softplused(kernel.op, {name: x.double() for name, x in want.items()})
    first = next(iter(SHAPES[kernel.op]))
    assert [x.dtype for x in found] == [given[first].dtype, torch.float32]
    return [
        float((f.double() - w).norm() / w.norm())
        for f, w in zip(found, exact, strict=True)
    ]


@needs_package
@pytest.mark.parametrize("dtype", MARGIN, ids=str)
@pytest.mark.parametrize("kernel", HERE, **NAMED)
def test_steps_are_the_loop(kernel: Kernel, dtype: torch.dtype) -> None:
    """Softplus, bias, D, the gate, groups and the first state; none is written on."""
    tensors = case(kernel.op, dtype)
    before = {name: x.clone() for name, x in tensors.items()}
    assert max(errors(kernel, tensors, tensors)) < MARGIN[dtype]
    assert all(torch.equal(x, before[name]) for name, x in tensors.items())
    swapped = tensors | {"B": tensors["C"], "C": tensors["B"]}
    assert min(errors(kernel, tensors, swapped)) > 0.1


@needs_package
@pytest.mark.parametrize("kernel", HERE, **NAMED)
def test_what_is_optional_may_be_left_out(kernel: Kernel) -> None:
    """Without D, a bias or a first state, each is zero; without z there is no gate."""
    tensors = case(kernel.op)
    tensors["z"] = torch.full_like(tensors["z"], 40.0)  # silu(40) is 40
    optional = [s.name for s in OPS[kernel.op].inputs if not s.required]
    given = {name: x for name, x in tensors.items() if name not in optional}
    zero = {name: torch.zeros_like(tensors[name]) for name in optional if name != "z"}
    found = kernel.call(**given, **{SOFTPLUS[kernel.op]: True})
    exact = tensors | zero
    want, state = softplused(kernel.op, {name: x.double() for name, x in exact.items()})
    assert float((40.0 * found[0].double() - want).norm() / want.norm()) < 1e-5
    assert float((found[1].double() - state).norm() / state.norm()) < 1e-5


@needs_package
def test_the_function_itself_cannot_do_without_them() -> None:
    """Why zeros stand in: a finding, which an update may end."""
    function = mamba_ssm_step._function(True)
    x = {n: v[..., 0] if v.ndim == 3 else v for n, v in case("selective_scan").items()}
    given = (torch.zeros(B, D, N), x["u"], x["delta"], x["A"], x["B"], x["C"])
    for missing in ("D", "dt_bias"):
        others = {"D": x["D"], "dt_bias": x["delta_bias"]} | {missing: None}
        with pytest.raises(TypeError, match="after \\* must be an iterable"):
            function(*given, **others)


def test_steps_are_listed_with_what_they_take() -> None:
    """Every tensor and switch of the op, token after token, without gradients."""
    for op, kernel in KERNELS.items():
        known = {s.name for s in OPS[op].inputs} | {*OPS[op].switches}
        assert accepted_parameters(kernel, OPS[op]) == known
        assert not kernel.gradients
        assert kernel.contract is not None
        assert kernel.contract.structure.kind == "sequential"


def test_another_version_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function is looked for in the installed source."""
    here = SimpleNamespace(submodule_search_locations=["/nowhere"])
    monkeypatch.setattr(mamba_ssm, "find_spec", lambda name: here)
    monkeypatch.setattr(mamba_ssm, "version", lambda name: "1.2")
    mamba_ssm._functions.cache_clear()
    for kernel in mamba_ssm_step.mamba_ssm_steps():
        assert kernel.unavailable == (
            "mamba_ssm 1.2 has no selective_state_update; "
            "pip install 'scancheck[mamba-ssm]'"
        )
    mamba_ssm._functions.cache_clear()
