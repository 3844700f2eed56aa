"""Chunk sizes and state formats of the CUDA linear_scan: contracts, model, refusals."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from scancheck.case import make_case
from scancheck.checks.oracle import Request, check_case
from scancheck.contract import Contract
from scancheck.errors import CaseInvalid
from scancheck.formats import BF16, FP16, FP32, Format, round_array
from scancheck.gate import verify
from scancheck.kernel import Kernel
from scancheck.kernels.cuda.catalog import kernels, linear_scan
from scancheck.kernels.cuda.linear_scan_instances import CHUNKS, STATES
from scancheck.kernels.models import cuda_linear_scan as model
from scancheck.kernels.models.cuda_arithmetic import numbers_of, stored

REGISTERED = [
    *({"chunk": chunk} for chunk in CHUNKS if chunk != 256),
    *({"state": state} for state in STATES[1:]),
]
Tensors = dict[str, torch.Tensor]


def modelled(*, chunk: int = 256, state: str = "fp32") -> Kernel:
    """The kernel of these options with its CPU model in its place."""
    kernel = linear_scan("single_pass", "plain", chunk=chunk, state=state)
    orders = model.single_pass(chunk)

    def call(*, a: Any = None, g: Any = None, b: Any, initial_state: Any = None) -> Any:
        return model.linear_scan("plain", *orders, a, g, b, initial_state, state=state)

    return replace(kernel, call=call, devices=("cpu",), unavailable=None)


@pytest.mark.parametrize("fmt", [FP16, BF16, FP32], ids=lambda fmt: fmt.name)
def test_stored_rounds_as_the_format_does(fmt: Format) -> None:
    """Values of all sizes, halfway ones, subnormals and specials: the same bits."""
    draw = np.random.default_rng(0)
    of_any_size = draw.integers(0, 2**32, 20000, dtype=np.uint32).view(np.float32)
    usual = draw.normal(size=20000) * 2.0 ** draw.integers(-30, 18, 20000)
    spacing = np.float64(fmt.smallest_subnormal)
    halfway = np.outer([1.0, 2.0**10], np.arange(-4.0, 5.0) / 2) * spacing
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, fmt.largest, fmt.largest * 1.01]
    with np.errstate(all="ignore"):
        values = np.concatenate((of_any_size, usual, halfway.ravel(), ends))
        values = values.astype(np.float32)
        expected = round_array(fmt, values.astype(np.float64)).astype(np.float32)
    got = np.array([stored(x, numbers_of(fmt)) for x in values], np.float32)
    same = got.view(np.uint32) == expected.view(np.uint32)
    assert (same | (np.isnan(got) & np.isnan(expected))).all()


class Kept(torch.autograd.Function):
    """A state rounded on its way to the next chunk, and its adjoint on the way back."""

    @staticmethod
    def forward(ctx: Any, state: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The rounded state."""
        ctx.dtype = dtype
        return state.to(dtype).to(state.dtype)

    @staticmethod
    def backward(ctx: Any, bar: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The rounded adjoint."""
        return bar.to(ctx.dtype).to(bar.dtype), None


def loop(tensors: Tensors, chunk: int, dtype: torch.dtype) -> tuple[Any, Any]:
    """The recurrence with states kept in `dtype` between chunks."""
    state = tensors["initial_state"]
    keep: Any = Kept.apply
    states = []
    for t in range(tensors["a"].shape[1]):
        if t > 0 and t % chunk == 0:
            state = keep(state, dtype)
        state = tensors["a"][:, t] * state + tensors["b"][:, t]
        states.append(state)
    return torch.stack(states, 1), state


@pytest.mark.parametrize("chunk", [64, 128])
@pytest.mark.parametrize("state", ["fp16", "bf16"])
def test_states_and_adjoints_are_rounded_at_chunk_edges(state: str, chunk: int) -> None:
    """Where nothing else rounds, the model has the loop's outputs and gradients."""
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[state]
    draw = torch.Generator().manual_seed(0)
    shape = (2, 3 * chunk + 5, 40)
    kept = torch.rand(shape, generator=draw) < 0.99
    signs = torch.where(torch.rand(shape, generator=draw) < 0.3, -1.0, 1.0)

    def whole(*size: int) -> torch.Tensor:
        return torch.randint(-2000, 2001, size, generator=draw).float()

    given = {"a": kept * signs, "b": whole(*shape), "initial_state": whole(2, 40)}
    bars = [whole(*shape), whole(2, 40)]
    results = []
    for scan in (
        modelled(chunk=chunk, state=state).call,
        lambda **tensors: loop(tensors, chunk, dtype),
        lambda **tensors: loop(tensors, chunk, torch.float32),
    ):
        leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
        outputs = scan(**leaves)
        torch.autograd.backward(outputs, bars)
        results.append([*outputs, *(x.grad for x in leaves.values())])
    for one, other, unrounded in zip(*results, strict=True):
        assert torch.equal(one, other)
        assert not torch.equal(one, unrounded)


@pytest.mark.slow
@pytest.mark.parametrize("options", REGISTERED, ids=str)
def test_model_passes_under_its_contract(options: dict[str, Any]) -> None:
    """Quick profile, outputs and gradients; one dtype each, as they differ in state."""
    kernel = modelled(**options)
    dtype = kernel.dtypes[REGISTERED.index(options) % len(kernel.dtypes)]
    result = verify(kernel, dtypes=[dtype], gradients=True)
    assert result.verdict == "PASS", result.explain()


def verdict(kernel: Kernel, **claims: Any) -> str:
    """Of one case in fp32 under the kernel's contract with other claims."""
    assert kernel.contract is not None
    contract: Contract = replace(kernel.contract, **claims)
    case = make_case(
        "linear_scan",
        {"B": 1, "T": 700, "D": 16},
        dtype="fp32",
        recipe="gaussian_slow",
        seed=0,
        options={"chunk": 256},
    )
    return str(check_case(kernel, case, Request(contract=contract)).verdict)


@pytest.mark.parametrize(
    ("options", "claims"),
    [
        ({"state": "bf16"}, {"state": "compute", "state_every": 1}),
        ({"state": "fp16"}, {"state": "compute", "state_every": 1}),
        ({"state": "bf16"}, {"state": "fp16"}),
        ({"state": "bf16", "chunk": 64}, {"state_every": 256}),
    ],
)
def test_a_wrong_claim_fails(options: dict[str, Any], claims: dict[str, Any]) -> None:
    """A longer state, or one that is rounded less often, is more than there is."""
    kernel = modelled(**options)
    assert verdict(kernel) == "PASS"
    assert verdict(kernel, **claims) == "FAIL"


def test_names_and_contracts_tell_the_options() -> None:
    """As those of the models do; what is the default goes without saying."""
    kernel = linear_scan("single_pass", "plain", chunk=64, state="bf16")
    assert kernel.name == "cuda.linear_scan.single_pass64.plain.state_bf16"
    assert kernel.chunk == 64
    assert kernel.contract is not None
    assert kernel.contract.structure.chunk == 64
    assert (kernel.contract.state, kernel.contract.state_every) == ("bf16", 64)
    names = {kernel.name for kernel in kernels()}
    for options in REGISTERED:
        assert linear_scan("single_pass", "plain", **options).name in names


@pytest.mark.parametrize(
    ("algorithm", "variant", "options", "words"),
    [
        ("one_pass", "plain", {}, "algorithm: expected one of single_pass, .*'one_p"),
        ("single_pass", "log", {}, "variant: expected one of plain, .*; got 'log'"),
        (
            "single_pass",
            "plain",
            {"chunk": 100},
            "chunk: expected one of 64, 128, 256, 512; got 100",
        ),
        (
            "single_pass",
            "plain",
            {"state": "fp64"},
            "state: expected one of fp32, fp16, bf16; got 'fp64'",
        ),
        (
            "two_pass",
            "plain",
            {"chunk": 64},
            "chunk: expected 256 with two_pass and plain; got 64, which single_pass",
        ),
        (
            "single_pass",
            "kahan",
            {"state": "bf16"},
            "state: expected fp32 with single_pass and kahan; got bf16, which",
        ),
    ],
)
def test_an_option_that_does_not_exist_is_refused(
    algorithm: str, variant: str, options: dict[str, Any], words: str
) -> None:
    """The message names it and says what there is."""
    with pytest.raises(CaseInvalid, match=f"linear_scan {words}"):
        linear_scan(algorithm, variant, **options)
