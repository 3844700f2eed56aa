"""Steps of one token, run over a sequence and judged as any kernel."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import scancheck
from scancheck.case import make_case
from scancheck.checks.oracle import Request, check_case
from scancheck.contract import Contract
from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS
from scancheck.gate import verify
from scancheck.kernel import Kernel
from scancheck.kernels.models.catalog import model
from scancheck.kernels.models.decode import decode
from scancheck.kernels.models.decode_catalog import DECODE_OPS, decode_models
from scancheck.ops import op_named
from scancheck.ops.normal_form import spec_of
from scancheck.recipes.build import build
from scancheck.recipes.inputs import cotangents
from scancheck.recipes.op_rules import rules_of
from scancheck.runner import execute

Step = Callable[..., Any]


def gated_delta(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor
) -> tuple[Tensor, Tensor]:
    """One token of the gated delta rule: q, k [B, H, K]; v [B, HV, V]; in fp32."""
    heads = v.shape[1] // k.shape[1]
    q, k = (x.float().repeat_interleave(heads, 1) for x in (q, k))
    state = state * g.float().exp()[..., None, None]
    error = v.float() - (state * k[..., None]).sum(-2)
    state = state + k[..., None] * (beta.float()[..., None] * error)[..., None, :]
    output = (state * (q * q.shape[-1] ** -0.5)[..., None]).sum(-2)
    return output.to(v.dtype), state


def in_place(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """One token of simple_gla; the state is changed where it lies."""
    heads = v.shape[1] // k.shape[1]
    q, k = (x.float().repeat_interleave(heads, 1) for x in (q, k))
    state.mul_(g.float().exp()[..., None, None])
    state.add_(k[..., None] * v.float()[..., None, :])
    return ((state * q[..., None]).sum(-2) * q.shape[-1] ** -0.5).to(v.dtype)


def short(step: Step, fmt: torch.dtype) -> Step:
    """The step with its state kept in another format, in fp32 while it computes."""

    def stored(
        state: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor
    ) -> tuple[Tensor, Tensor]:
        output, after = step(state.float(), q, k, v, beta, g)
        return output, after.to(fmt).to(state.dtype)

    return stored


def case_of(
    op: str, steps: int = 20, *, state: bool = True, dtype: str = "fp32"
) -> Any:
    """A small case."""
    known = op_named(op)
    sizes = dict(rules_of(op).roster[0]) | {"B": 2, known.time_axis: steps}
    options = {known.state: state}
    return make_case(
        op, sizes, dtype=dtype, recipe="gaussian_slow", seed=1, options=options
    )


def verdict(kernel: Kernel, **options: Any) -> str:
    """The verdict of a small case under the kernel's own contract."""
    contract = kernel.contract or Contract()
    found = check_case(
        kernel, case_of(kernel.op, **options), Request(contract=contract)
    )
    return str(found.verdict)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp64"])
def test_a_right_step_passes(dtype: str) -> None:
    """With and without an initial state, and in all formats of the model."""
    kernel = decode("gated_delta_rule")(gated_delta)
    fp64 = decode("gated_delta_rule")(_double)
    judged = fp64 if dtype == "fp64" else kernel
    for state in (True, False):
        assert verdict(judged, state=state, dtype=dtype) == "PASS"
    assert verdict(judged, steps=0, dtype=dtype) == "PASS"


def _double(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor
) -> tuple[Tensor, Tensor]:
    """As `gated_delta` in fp64."""
    assert state.dtype == torch.float64
    heads = v.shape[1] // k.shape[1]
    q, k = (x.repeat_interleave(heads, 1) for x in (q, k))
    state = state * g.exp()[..., None, None]
    error = v - (state * k[..., None]).sum(-2)
    state = state + k[..., None] * (beta[..., None] * error)[..., None, :]
    return (state * (q * q.shape[-1] ** -0.5)[..., None]).sum(-2), state


def test_a_state_changed_in_place_passes() -> None:
    """A step that returns its output alone has changed the state that it was given."""
    kernel = decode("simple_gla")(in_place)
    assert verdict(kernel) == "PASS"


def test_a_state_that_is_not_changed_is_red() -> None:
    """Returned alone, the output of a step that makes a new state loses it."""
    kernel = decode("gated_delta_rule")(lambda state, q, k, v, beta, g: v)
    assert verdict(kernel) == "FAIL"
    forgets = decode("gated_delta_rule")(
        lambda state, q, k, v, beta, g: gated_delta(state, q, k, v, beta, g)[0]
    )
    assert verdict(forgets) == "FAIL"


def test_a_short_state_has_to_be_declared() -> None:
    """bf16 between steps fails as fp32, and passes when it is said."""
    step = short(gated_delta, torch.bfloat16)
    claims = decode("gated_delta_rule")(step)
    assert verdict(claims, state=False) == "FAIL"
    says = decode("gated_delta_rule", state="bf16")(step)
    assert says.contract is not None
    assert says.contract.state == "bf16"
    assert verdict(says, state=False) == "PASS"
    with pytest.raises(CaseInvalid, match="takes no initial_state"):
        verdict(says, state=True)


def test_a_short_state_between_steps_is_named(
    causes_until: Callable[[Kernel, str], list[str]],
) -> None:
    """A red case says that the state is kept in a shorter format."""
    kernel = decode("gated_delta_rule")(short(gated_delta, torch.bfloat16))
    bug = replace(kernel, symptom="short_state")
    assert bug.symptom in causes_until(bug, "fp32")


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda: 0, "first parameter is state.*got no parameter"),
        (lambda q, k: 0, "first parameter is state.*got q"),
        (
            lambda state, q, window: 0,
            "gated_delta_rule has no window; expected some of",
        ),
    ],
)
def test_what_is_no_step_is_told(step: Step, said: str) -> None:
    """A state first, then tensors of the op."""
    with pytest.raises(CaseInvalid, match=said):
        decode("gated_delta_rule")(step)


def test_a_format_that_is_none_is_told() -> None:
    """The state's format is one of the table's."""
    with pytest.raises(CaseInvalid, match=r"decode state: .*got 'int8'"):
        decode("gated_delta_rule", state="int8")


def test_three_values_are_an_error_of_the_kernel() -> None:
    """A step gives an output, or an output and a state."""
    kernel = decode("gated_delta_rule")(lambda state, q, k, v, beta, g: (v, state, v))
    outcome = execute(
        kernel,
        op_named("gated_delta_rule"),
        build(case_of("gated_delta_rule")),
        "fp32",
    )
    assert outcome.problem is not None
    assert "got 3 values" in outcome.problem.message


def test_it_is_public() -> None:
    """`scancheck.decode` is the decorator."""
    assert scancheck.decode is decode


@pytest.mark.parametrize("kernel", decode_models(), ids=lambda kernel: kernel.name)
def test_models_give_the_bits_of_the_whole(kernel: Kernel) -> None:
    """Token by token is the order of the sequential model."""
    assert kernel.op in DECODE_OPS
    whole = model(kernel.op, "sequential", "plain")
    case = case_of(kernel.op, dtype="bf16")
    op, inputs = op_named(kernel.op), build(case)
    one, other = (execute(k, op, inputs, "bf16", runs=1) for k in (kernel, whole))
    assert one.problem is None
    for name, values in other.outputs.items():
        assert np.array_equal(one.outputs[name], values)


@pytest.mark.parametrize("dtype", ["bf16", "fp8_e4m3", "fp8_e5m2"])
def test_gradients_of_tokens_are_added_up_wide(dtype: str) -> None:
    """In fp32, and stored once: torch does not add tensors of eight bits."""
    (kernel,) = (k for k in decode_models() if k.op == "selective_scan")
    whole = model("selective_scan", "sequential", "plain")
    case = case_of("selective_scan", dtype=dtype)
    op, inputs = op_named(case.op), build(case)
    bars = cotangents(case, "dense", 1)
    one, other = (
        execute(k, op, inputs, dtype, cotangents=bars, runs=1) for k in (kernel, whole)
    )
    assert (one.problem, other.problem) == (None, None)
    u = 2.0 ** -FORMATS[dtype].precision
    for name, values in other.gradients.items():
        shared = "L" not in spec_of(op, name, values.ndim).axes
        allowed = 2.0**-20 * np.abs(values).max() if shared else 2.0 * u * abs(values)
        got = one.gradients[name]
        overflows = np.isnan(got) & np.isnan(values)  # as e4m3 stores them
        assert (overflows | (np.abs(got - values) <= allowed)).all(), name


def test_a_step_is_given_the_formats_of_its_tensors() -> None:
    """Those that its tokens share too, though their gradients are added up wide."""
    seen = set()

    def step(
        state: Tensor, r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor
    ) -> Any:
        seen.update(x.dtype for x in (r, k, v, w, u))
        return v, state

    kernel = decode("rwkv6")(step)
    case = case_of("rwkv6", dtype="bf16")
    execute(kernel, op_named("rwkv6"), build(case), "bf16", runs=1)
    assert seen == {torch.bfloat16}


def test_a_model_passes() -> None:
    """The quick profile, with every part of the op seen."""
    result = verify("model.gated_delta_rule.decode.plain", dtypes=["bf16"])
    assert (result.verdict, result.record.unseen) == ("PASS", ())
