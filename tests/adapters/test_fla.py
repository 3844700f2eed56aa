"""flash-linear-attention's kernels in our calling form, against loops of float64."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from plain_loops import SHARED, loop
from torch import Tensor

from scancheck.adapters import fla
from scancheck.adapters.catalog import adapters
from scancheck.adapters.fla_rows import ROWS, Row
from scancheck.bounds.budget import budget_for
from scancheck.checks.related import any_order
from scancheck.contract import Contract, Structure
from scancheck.kernel import Kernel
from scancheck.ops import OPS
from scancheck.ops.calling import ARGUMENTS

KERNELS = {kernel.name: kernel for kernel in adapters() if kernel.name[:4] == "fla."}
HERE = [kernel for kernel in KERNELS.values() if kernel.unavailable is None]
B, T, H, HV, K, V, D, M = 1, 70, 2, 4, 16, 16, 5, 3
NORMALIZED, PRODUCT = "normalized_linear_attention", "gated_delta_product"
SHAPES = {
    "v": (B, T, "heads", V),
    "beta": (B, T, "heads"),
    "gv": (B, T, H, V),
    "u": (H, K),
    "initial_state": (B, "heads", K, V),
    "initial_key_sum": (B, "heads", K),
}
STATES = ("initial_state", "initial_key_sum")
# What fla 0.6.0 gets wrong on these cases: findings, which an update may end.
FINDINGS = {
    # The final state's cotangent is not used.
    "fla.fused_recurrent_rwkv6": {"k", "v", "w", "initial_state"},
    # Nor here, and the initial state has no gradient at all.
    "fla.chunk_hgrn": {"b", "g", "initial_state"},
    # 0 times infinity: decays of the rows after the last token of a part of a chunk.
    "fla.chunk_lightning_attn": {"final_state"},
}
NAMES = ("output", "final_state", "final_key_sum")  # as `errors` calls them
OUTPUTS = {*NAMES[:2]}
ALL_OUTPUTS = {op: {*NAMES} if op == NORMALIZED else OUTPUTS for op in OPS}
# A convention that is not met is off by tenths. Rounding is below this: fp32 sums of
# 70 tokens give 1e-6, fp16 storage 5e-4 with operands rounded at several points.
MARGIN = {"fp32": 1e-4, "fp16": 5e-3}
TORCH = {"fp32": torch.float32, "fp16": torch.float16}

needs_fla = pytest.mark.skipif(not HERE, reason="flash-linear-attention is missing")


@pytest.mark.parametrize("row", [row for row in ROWS if row.op in fla.INVERSES])
def test_rank_one_chunks_declare_how_they_invert(row: Row) -> None:
    """The chunk forms; the recurrent ones go token by token."""
    compiled, interpreted = (
        fla.contract_of(row, interpreted=here) for here in (False, True)
    )
    assert compiled is not None and interpreted is not None
    if row.chunk is None:
        assert compiled == interpreted and compiled.structure.kind == "sequential"
        return
    assert compiled.structure.chunk == row.chunk and compiled.operands == "storage"
    assert (compiled.log == "none") == (row.op == "delta_rule")
    assert compiled.inverse == ("substitution" if row.op == "rwkv7" else "block")
    orders = compiled.structure.inner, interpreted.structure.inner
    assert orders == ("tree", "sequential")


def heads_of(kernel: Kernel) -> str:
    """Whether value heads may share key heads, by the kernel's contract."""
    return (kernel.contract or Contract()).heads


def case(kernel: Kernel, dtype: str = "fp32", heads: int = H) -> dict[str, Tensor]:
    """Tensors of the kernel's op: slow decays, keys of norm 1, betas in (0, 1)."""
    source = torch.Generator().manual_seed(5)
    tensors = {}
    for name in (name for name in kernel.supports or () if name not in ARGUMENTS):
        if kernel.op == "linear_scan":
            shape: tuple[Any, ...] = (B, D) if name == "initial_state" else (B, T, D)
        elif name == "g" and kernel.op != "kda":
            shape = (B, T, "heads")
        elif name == "g":
            shape = (B, T, "heads", K)
        else:
            shape = SHAPES.get(name, (B, T, H, K))
        if kernel.op == PRODUCT and name in ("k", "v", "beta"):
            shape = (B, T, M, *shape[2:])
        sizes = [heads if size == "heads" else size for size in shape]
        drawn = torch.randn(sizes, generator=source, dtype=torch.float64)
        if name == "beta":
            drawn = drawn.sigmoid()
        elif name in ("g", "gk", "gv") or name == "w":
            drawn = -0.1 * drawn.abs()
        elif name in ("k", "a", "b") and kernel.op != "linear_scan":
            drawn = torch.nn.functional.normalize(drawn, dim=-1)
        if kernel.op == NORMALIZED and name in ("q", "k", "initial_key_sum"):
            drawn = drawn.abs()  # a feature map is positive: nothing cancels
        stored = torch.float32 if name in STATES else TORCH[dtype]
        tensors[name] = drawn.to(stored)
    if kernel.op == "rwkv7":
        tensors["b"] *= -tensors["a"]  # not parallel to a, and small
    return tensors


def gradients(
    tensors: dict[str, Tensor], outputs: tuple[Tensor, ...]
) -> dict[str, Tensor]:
    """Gradients of both outputs, the final state's cotangent as dense as the other."""
    source = torch.Generator().manual_seed(9)
    bars = [
        torch.randn(o.shape, generator=source, dtype=torch.float64) for o in outputs
    ]
    found = torch.autograd.grad(
        outputs,
        list(tensors.values()),
        [bar.to(o.dtype) for bar, o in zip(bars, outputs, strict=True)],
        allow_unused=True,
    )
    return {
        name: torch.zeros_like(x) if grad is None else grad
        for (name, x), grad in zip(tensors.items(), found, strict=True)
    }


def off(found: Tensor, want: Tensor) -> float:
    """The error's norm relative to that of what is wanted."""
    return float((found.double() - want).detach().norm() / want.detach().norm())


def errors(
    kernel: Kernel,
    tensors: dict[str, Tensor],
    want_of: dict[str, Tensor] | None = None,
    *,
    backward: bool = False,
) -> dict[str, float]:
    """How far outputs (and gradients) are from the loop's of `want_of`."""
    given = {name: x.detach().requires_grad_(backward) for name, x in tensors.items()}
    exact = {
        name: x.detach().double().requires_grad_(backward)
        for name, x in (want_of or tensors).items()
    }
    found, want = kernel.call(**given), tuple(loop(kernel.op, exact).values())
    assert len(found) == len(want)
    assert found[0].dtype == tensors["b" if kernel.op == "linear_scan" else "v"].dtype
    assert {x.dtype for x in found[1:]} == {torch.float32}
    named = zip(NAMES, found, want, strict=False)
    result = {name: off(f, w) for name, f, w in named}
    if backward:
        slopes, wanted = gradients(given, found), gradients(exact, want)
        result |= {name: off(slopes[name], wanted[name]) for name in tensors}
    return result


def too_far(found: dict[str, float], dtype: str = "fp32") -> set[str]:
    """What is further from the loop than rounding takes it."""
    return {name for name, error in found.items() if not error < MARGIN[dtype]}


@needs_fla
@pytest.mark.parametrize("kernel", HERE, ids=lambda kernel: kernel.name)
def test_conventions_are_the_ops(kernel: Kernel) -> None:
    """Outputs, and gradients where it has them, are those of a plain loop."""
    dtype = kernel.dtypes[0]
    found = errors(kernel, case(kernel, dtype), backward=kernel.gradients)
    assert too_far(found, dtype) == FINDINGS.get(kernel.name, set()), found


@needs_fla
@pytest.mark.parametrize(
    "kernel",
    [k for k in HERE if k.op in SHARED and heads_of(k) == "shared"],
    ids=lambda kernel: kernel.name,
)
def test_value_heads_share_neighbouring_key_heads(kernel: Kernel) -> None:
    """With more value heads than key heads, head j has key head j // (HV // H)."""
    dtype = kernel.dtypes[0]
    tensors = case(kernel, dtype, HV)
    known = FINDINGS.get(kernel.name, set())
    assert too_far(errors(kernel, tensors), dtype) == known
    other = {name: tensors[name].flip(2) for name in ("q", "k")}
    found = too_far(errors(kernel, tensors, tensors | other), dtype)
    assert found == ALL_OUTPUTS[kernel.op]


@needs_fla
@pytest.mark.parametrize(
    ("name", "swapped"),
    [
        ("fla.chunk_gated_delta_rule", ("g", "beta")),
        ("fla.chunk_kda", ("q", "k")),
        ("fla.chunk_rwkv6", ("r", "k")),
        ("fla.chunk_rwkv7", ("a", "b")),
        ("fla.chunk_dplr_delta_rule", ("a", "b")),
        ("fla.chunk_linear_attn.normalize", ("q", "k")),
        ("fla.fused_recurrent_gla", ("gk", "gv")),
        ("fla.fused_recurrent_hgrn", ("g", "b")),
    ],
)
def test_swapped_tensors_are_seen(name: str, swapped: tuple[str, str]) -> None:
    """The case tells a convention from another: exchanged tensors are far off."""
    kernel = KERNELS[name]
    tensors = case(kernel)
    one, other = swapped
    exchanged = tensors | {one: tensors[other], other: tensors[one]}
    assert too_far(errors(kernel, tensors, exchanged)) == ALL_OUTPUTS[kernel.op]


@needs_fla
@pytest.mark.parametrize(
    ("name", "fixed", "seen"),
    [
        ("fla.chunk_linear_attn", {}, None),
        ("fla.fused_recurrent_rwkv7", {}, {"output"}),
        (
            "fla.chunk_lightning_attn",
            {"layer_idx": 1, "num_layers": 2},
            OUTPUTS,
        ),
    ],
)
def test_other_settings_are_seen(
    name: str, fixed: dict[str, Any], seen: set[str] | None
) -> None:
    """Without its row's settings a kernel computes something else than the op."""
    (row,) = [row for row in ROWS if row.name == name]
    other = replace(KERNELS[name], call=partial(fla.call, replace(row, fixed=fixed)))
    tensors = case(other)
    if seen is None:  # a normaliser comes back beside the state
        with pytest.raises(AttributeError, match="'tuple' object"):
            other.call(**tensors)
    else:
        assert too_far(errors(other, tensors)) == seen


@needs_fla
def test_state_is_key_by_value() -> None:
    """An initial state that is transposed gives other outputs."""
    kernel = KERNELS["fla.chunk_gla"]
    tensors = case(kernel)
    other = tensors | {"initial_state": tensors["initial_state"].mT}
    assert too_far(errors(kernel, tensors, other)) == OUTPUTS


@needs_fla
@pytest.mark.parametrize("kernel", HERE, ids=lambda kernel: kernel.name)
def test_initial_state_may_be_left_out(kernel: Kernel) -> None:
    """Without an initial state a kernel starts from zero, one half of it or both."""
    dtype = kernel.dtypes[0]
    tensors = case(kernel, dtype)
    known = FINDINGS.get(kernel.name, set()) & OUTPUTS
    states = [name for name in STATES if name in tensors]
    for left_out in {*((name,) for name in states), tuple(states)}:
        zero = {name: torch.zeros_like(tensors[name]) for name in left_out}
        given = {name: x for name, x in tensors.items() if name not in left_out}
        assert too_far(errors(kernel, given, tensors | zero), dtype) == known


@needs_fla
def test_a_normaliser_without_tokens_is_lost() -> None:
    """The key sum of no token should be the first one: an update may end that."""
    kernel = KERNELS["fla.fused_recurrent_linear_attn.normalize"]
    tensors = case(kernel)
    none = {n: x if n in STATES else x[:, :0] for n, x in tensors.items()}
    _, state, key_sum = kernel.call(**none)
    assert torch.equal(state, tensors["initial_state"])
    assert key_sum.shape == (B, 0, H, K)


@needs_fla
def test_float32_is_refused_by_the_chunked_delta_rule() -> None:
    """The row leaves out fp32 because fla does; an update may end that."""
    kernel = KERNELS["fla.chunk_delta_rule"]
    assert "fp32" not in kernel.dtypes
    with pytest.raises(AssertionError, match="does not support float32"):
        kernel.call(**case(kernel, "fp32"))


@needs_fla
def test_undeclared_gradients_are_none() -> None:
    """A kernel that declares no gradients has none to give."""
    for kernel in HERE:
        if not kernel.gradients:
            given = {n: x.requires_grad_() for n, x in case(kernel).items()}
            output, _ = kernel.call(**given)
            with pytest.raises((NotImplementedError, RuntimeError)):
                output.sum().backward()


def test_every_row_is_listed_once() -> None:
    """Whether or not fla is installed, each row is an adapter under fla's name."""
    assert len(KERNELS) == len(ROWS) == 27
    assert set(KERNELS) == {row.name for row in ROWS}
    for kernel in KERNELS.values():
        assert (kernel.chunk is None) == ("fused_recurrent" in kernel.name)
        assert kernel.devices in (("cpu",), ("cuda",))


@pytest.mark.parametrize("package", ["flash-linear-attention", "einops", "triton"])
def test_a_missing_package_is_the_reason(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """Without a package its kernels stay listed, with how to install it."""
    modules = {found: module for module, found in fla._NEEDED.items()}
    monkeypatch.setattr(
        fla, "find_spec", lambda name: None if name == modules[package] else object()
    )
    listed = fla.fla_kernels()
    assert len(listed) == len(ROWS)
    assert {kernel.unavailable for kernel in listed} == {
        f"{package} is not installed; pip install 'scancheck[fla]'"
    }


def test_a_version_without_a_function_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each function is looked for in the installed source, which is not imported."""
    for family, function in (
        ("gla", "chunk_gla"),
        ("linear_attn", "chunk_linear_attn"),
    ):
        source = tmp_path / "ops" / family / "__init__.py"
        source.parent.mkdir(parents=True)
        source.write_text(f"raise ImportError\nfrom .chunk import {function}\n")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(fla, "find_spec", lambda name: spec)
    monkeypatch.setattr(fla, "version", lambda name: "9.9")
    install = "pip install 'scancheck[fla]'"
    fla._names.cache_clear()
    try:
        told = {row.name: fla.unavailable(row) for row in ROWS}
    finally:
        fla._names.cache_clear()
    there = {name for name, reason in told.items() if reason is None}
    assert there == {"fla.chunk_gla", "fla.chunk_linear_attn"}
    assert told["fla.fused_recurrent_gla"] == (
        f"flash-linear-attention 9.9 has no fused_recurrent_gla; {install}"
    )
    # An older one, whose normalised state is the memory alone.
    assert told["fla.chunk_linear_attn.normalize"] == (
        "chunk_linear_attn of flash-linear-attention 9.9 has no "
        f"normalize_with_z_state: its state lacks the sum of keys; {install}"
    )


@pytest.mark.parametrize("reason", ["there is no CUDA device", None])
def test_bf16_is_for_devices(
    monkeypatch: pytest.MonkeyPatch, reason: str | None
) -> None:
    """The interpreter's wrong bf16 is not offered, with the reason; a device's is.

    There kernels are said to run in one configuration.
    """
    monkeypatch.setattr(fla, "unavailable", lambda row: None)
    monkeypatch.setattr(fla, "device_unavailable", lambda: reason)
    for kernel in fla.fla_kernels():
        assert ("bf16" in kernel.dtypes) == (reason is None)
        assert "fp16" in kernel.dtypes
        assert kernel.devices == (("cuda",) if reason is None else ("cpu",))
        assert ("configuration" if reason is None else "bf16") in str(kernel.note)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=lambda kernel: kernel.name)
def test_contracts_have_a_budget_on_the_op(kernel: Kernel) -> None:
    """What a contract says of an op has a bound there, gradients included."""
    op = OPS[kernel.op]
    contract = kernel.contract or Contract()
    tensors = {n: x.double().numpy() for n, x in case(kernel, "fp16").items()}
    tensors = {n: x[:, :20] if x.shape[1:2] == (T,) else x for n, x in tensors.items()}
    written = tensors["b" if kernel.op == "linear_scan" else "v"]
    written = written[:, :, 0] if kernel.op == PRODUCT else written
    first, final, *_ = (spec.name for spec in op.outputs)
    bars = {first: np.ones(written.shape), final: tensors["initial_state"]}
    budget = budget_for(op, tensors, {}, contract, "fp16", bars)
    for allowed in (budget.outputs | budget.gradients).values():
        assert np.isfinite(allowed.error).all()


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=lambda kernel: kernel.name)
def test_contracts_hold_where_a_sequence_is_cut(kernel: Kernel) -> None:
    """Relations judge calls that end anywhere: in any order, or the declared one."""
    contract = kernel.contract or Contract()
    cut = any_order(OPS[kernel.op], contract, "fp32")
    assert cut.log == contract.log
    assert cut.structure == (
        Structure() if OPS[kernel.op].diagonal else contract.structure
    )


def test_chunks_have_operands_in_the_dtype_of_the_tensors() -> None:
    """And only they: a recurrent form multiplies no matrices."""
    for row in ROWS:
        contract = KERNELS[row.name].contract or Contract()
        products = row.chunk is not None and row.family != "hgrn"
        assert contract.operands == ("storage" if products else "compute")


def test_a_quotient_is_declared_in_the_dtype_of_the_tensors() -> None:
    """fla keeps its normaliser in that dtype, and divides in it."""
    for row in ROWS:
        contract = KERNELS[row.name].contract or Contract()
        assert (contract.compute == "storage") == (row.op == NORMALIZED)
