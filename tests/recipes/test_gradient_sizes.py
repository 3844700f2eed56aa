"""Kernels whose backward takes some sizes alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from scancheck import verify
from scancheck.campaign.stream import domain_of, run_round
from scancheck.campaign.trial import Judged, Trial
from scancheck.case import Case, make_case
from scancheck.contract import Contract
from scancheck.errors import KernelUnavailable
from scancheck.gate.fuzz import fuzz
from scancheck.kernel import GradientSizes, Kernel
from scancheck.ops import op_named
from scancheck.recipes.case_list import case_list
from scancheck.recipes.catalog import accepts_everything
from scancheck.recipes.taken_sizes import TakenSizes, taken_sizes
from scancheck.verdict import Verdict

OP = "linear_attention"
EVEN = GradientSizes(
    names=("K", "V"), multiple=2, dtypes=("fp32",), why="its backward refuses them"
)
NARROW = GradientSizes(names=("V",), least=9, why="it does not compile")


class _Even(torch.autograd.Function):
    """Nothing, with a backward that refuses odd widths."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        """The tensor."""
        return x.clone()

    @staticmethod
    def backward(context: Any, bar: Tensor) -> Tensor:
        """Its cotangent."""
        assert bar.shape[-1] % 2 == 0, f"even widths, please; got {bar.shape[-1]}"
        return bar


def attention(q, k, v, initial_state=None):  # type: ignore[no-untyped-def]
    """A linear attention of fp32 by token, for even widths where it is differentiated.

    Value heads share key heads in the order of the op.
    """
    shared = v.shape[2] // q.shape[2]
    q, k = (_Even.apply(x).repeat_interleave(shared, 2) for x in (q, k))
    v = _Even.apply(v)
    state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    state = state if initial_state is None else initial_state.clone()
    outputs = [v[:, :0]]
    for t in range(q.shape[1]):
        state = state + k[:, t, :, :, None] * v[:, t, :, None]
        read = (q[:, t, :, :, None] * state).sum(2) * q.shape[3] ** -0.5
        outputs.append(read[:, None])
    return torch.cat(outputs, 1), state


KERNEL = Kernel(name="even", op=OP, call=attention, gradient_sizes=EVEN)


def widths(case: Case) -> tuple[int, int]:
    """K and V."""
    sizes = dict(case.sizes)
    return sizes["K"], sizes["V"]


def test_sizes_are_raised_to_ones_that_are_taken() -> None:
    """Small ones that differ still do; other dtypes and sizes are left alone."""
    sizes = {"B": 1, "T": 3, "H": 1, "HV": 1, "K": 5, "V": 3}
    case = make_case(OP, sizes, recipe="impulses", seed=1)
    assert widths(EVEN.of(case)) == (6, 4)
    assert dict(EVEN.of(case).sizes) == sizes | {"K": 6, "V": 4}
    assert EVEN.of(replace(case, dtype="bf16")) == replace(case, dtype="bf16")
    found = [make_case(OP, sizes | {"V": v}, recipe="r", seed=1) for v in range(1, 12)]
    assert [widths(NARROW.of(one))[1] for one in found] == [
        *(9, 10, 11, 12, 13, 14, 15, 16),
        *(9, 10, 11),
    ]
    both = replace(NARROW, multiple=4)
    assert {widths(both.of(one))[1] for one in found} == {12, 16}


def test_what_is_left_out_is_told() -> None:
    """In one line, with the dtypes and the reason."""
    assert EVEN.left_out == (
        "gradients in fp32 with K or V no multiple of 2: its backward refuses them"
    )
    assert NARROW.left_out == "gradients with V below 9: it does not compile"


def test_all_cases_of_a_list_have_such_sizes() -> None:
    """Recipes, lengths and calls are those of the list without."""
    accepts = accepts_everything(OP)
    plain = case_list(OP, "fp32", accepts=accepts, empty=True)
    even = case_list(
        OP, "fp32", accepts=accepts, empty=True, taken=TakenSizes(of_gradients=EVEN)
    )
    assert any(k % 2 or v % 2 for k, v in map(widths, plain))
    assert not any(k % 2 or v % 2 for k, v in map(widths, even))
    for left, right in zip(plain, even, strict=True):
        assert (left.recipe, left.options) == (right.recipe, right.options)
        assert dict(left.sizes)["T"] == dict(right.sizes)["T"]


@pytest.mark.parametrize("gradients", [False, True])
def test_trials_have_such_sizes(gradients: bool) -> None:
    """Those of a fuzz campaign, where it judges gradients."""
    domain = domain_of(
        KERNEL,
        op_named(OP),
        dtypes=("fp32",),
        profile="quick",
        gradients=gradients,
        accepted=accepts_everything(OP),
        required=frozenset(),
        chunk=64,
        taken=taken_sizes(KERNEL, op_named(OP), Contract(), gradients=gradients),
    )
    drawn: list[Trial] = []

    def judge(trial: Trial) -> Judged:
        drawn.append(trial)
        return Judged(trial=trial, verdict=Verdict.PASS)

    run_round(domain, 0, 0, 20, judge)
    odd = any(k % 2 or v % 2 for k, v in (widths(trial.case) for trial in drawn))
    assert odd == (not gradients)


def test_such_a_kernel_passes_and_what_was_left_out_is_told() -> None:
    """Without gradients nothing is left out, nor in other dtypes."""
    told = verify(KERNEL, gradients=True).record
    assert told.verdict == "PASS"
    assert told.not_judged == (EVEN.left_out,)
    assert "gradient q" in told.seen
    assert verify(KERNEL).record.not_judged == ()
    elsewhere = replace(EVEN, dtypes=("fp16",))
    kernel = replace(KERNEL, gradient_sizes=elsewhere)
    unsaid = verify(kernel, gradients=True).record
    assert unsaid.verdict == "FAIL"
    assert "even widths, please" in unsaid.findings[0].reason
    assert elsewhere.left_out not in unsaid.not_judged


def test_gradients_that_are_refused_here_are_a_reason(tmp_path: Any) -> None:
    """No case is judged where they are asked for, and all are without."""
    kernel = replace(KERNEL, no_gradients="its backward refuses this GPU")
    words = "even has no gradients here: its backward refuses this GPU; without --grad"
    with pytest.raises(KernelUnavailable, match=words):
        verify(kernel, gradients=True)
    with pytest.raises(KernelUnavailable, match=words):
        fuzz(kernel, gradients=True, cases=3, output=tmp_path)
    assert verify(kernel).verdict == "PASS"
